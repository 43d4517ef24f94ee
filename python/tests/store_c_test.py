# SPDX-License-Identifier: Apache-2.0
"""The C face of the store, and the C++ header on it, from programs built against the installed package."""

import subprocess

import pytest

import mooncake
from store_helpers import PATIENCE_S

C_PROGRAM = r"""
#include <store_c.h>
#include <mooncake/store_c.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
            return 1; \
        } \
    } while (0)

static int check_misuse(mooncake_store_t store) {
    char text[8];
    int results[1];
    int64_t lengths[1];
    const char* keys[1] = {NULL};
    void* buffers[1] = {NULL};
    size_t sizes[1] = {1};
    mooncake_store_t none[] = {NULL, (mooncake_store_t)12345, store};
    for (size_t i = 0; i < 3; ++i) {
        mooncake_store_t s = none[i];
        CHECK(mooncake_store_put(s, NULL, "v", 1, NULL) == -600 && mooncake_store_put(s, "k", NULL, 1, NULL) == -600);
        CHECK(mooncake_store_put_from(s, "k", NULL, 1, NULL) == -600 && mooncake_store_put(s, "k", "v", 0, NULL) == -600);
        CHECK(mooncake_store_get_into(s, NULL, text, 8) == -600 && mooncake_store_get_into(s, "k", NULL, 8) == -600);
        CHECK(mooncake_store_is_exist(s, NULL) == -600 && mooncake_store_get_size(s, NULL) == -600);
        CHECK(mooncake_store_batch_put_from(s, NULL, buffers, sizes, 1, NULL, results) == -600);
        CHECK(mooncake_store_batch_put_from(s, keys, buffers, sizes, 1, NULL, results) == -600);
        CHECK(mooncake_store_batch_get_into(s, keys, buffers, sizes, 1, lengths) == -600);
        CHECK(mooncake_store_batch_is_exist(s, keys, 1, results) == -600 && mooncake_store_batch_is_exist(s, keys, 1, NULL) == -600);
        CHECK(mooncake_store_remove(s, NULL, 0) == -600 && mooncake_store_remove_by_regex(s, NULL, 0) == -600);
        CHECK(mooncake_store_register_buffer(s, NULL, 8) == -600 && mooncake_store_unregister_buffer(s, NULL) == -600);
        CHECK(mooncake_store_get_hostname(s, NULL, 8) == -600);
        CHECK(mooncake_store_batch_put_from(s, keys, buffers, sizes, (size_t)-1, NULL, results) == -600);
        CHECK(mooncake_store_batch_get_into(s, keys, buffers, sizes, (size_t)-1, lengths) == -600);
        CHECK(mooncake_store_batch_is_exist(s, keys, (size_t)-1, results) == -600);
        CHECK(mooncake_store_is_exist_n(s, NULL, 1) == -600 && mooncake_store_get_into_n(s, NULL, 1, text, 8) == -600);
    }
    mooncake_store_destroy(NULL);
    return 0;
}

int main(int argc, char** argv) {
    static char memory[1 << 20];
    char name[256];
    int codes[3];
    int64_t lengths[3];
    const char* keys[3] = {"a", "b", "none"};
    void* buffers[3] = {memory, memory + 1000, memory + 2000};
    size_t sizes[3] = {1000, 1000, 1000};
    const char* segments[1];
    mooncake_replicate_config_t config = {1, 1, 1, segments, 1};
    mooncake_store_t store = mooncake_store_create();
    CHECK(argc == 2 && store);
    CHECK(mooncake_store_health_check(store) == 1 && mooncake_store_remove_all(store, 1) == -600);
    CHECK(mooncake_store_setup(store, "", "P2PHANDSHAKE", 0, 0, "tcp", "", argv[1]) == -600);
    CHECK(mooncake_store_setup(store, "127.0.0.1", "P2PHANDSHAKE", 32 << 20, 16 << 20, "tcp", "", argv[1]) == 0);
    CHECK(mooncake_store_setup(store, "127.0.0.1", "P2PHANDSHAKE", 32 << 20, 16 << 20, "tcp", "", argv[1]) == -600);
    CHECK(mooncake_store_health_check(store) == 0);
    CHECK(check_misuse(store) == 0);
    CHECK(mooncake_store_get_hostname(store, name, 3) == -10);
    CHECK(mooncake_store_get_hostname(store, name, sizeof name) == 0 && strncmp(name, "127.0.0.1:", 10) == 0);
    segments[0] = name;

    CHECK(mooncake_store_put(store, "k", "value", 5, &config) == 0 && mooncake_store_put(store, "k", "other", 5, NULL) == 0);
    CHECK(mooncake_store_is_exist(store, "k") == 1 && mooncake_store_get_size(store, "k") == 5);
    CHECK(mooncake_store_get_into(store, "k", memory, sizeof memory) == 5 && memcmp(memory, "value", 5) == 0);
    CHECK(mooncake_store_get_into(store, "k", memory, 4) == -600 && mooncake_store_get_into(store, "none", memory, 4) == -704);
    config.replica_num = 0;
    CHECK(mooncake_store_put(store, "l", "value", 5, &config) == -600);

    CHECK(mooncake_store_register_buffer(store, memory, sizeof memory) == 0);
    memset(memory, 1, 1000);
    memset(memory + 1000, 2, 1000);
    CHECK(mooncake_store_put_from(store, "p", memory, 1000, NULL) == 0);
    CHECK(mooncake_store_batch_put_from(store, keys, buffers, sizes, 2, NULL, codes) == 0 && codes[0] == 0 && codes[1] == 0);
    CHECK(mooncake_store_batch_is_exist(store, keys, 3, codes) == 0 && codes[0] == 1 && codes[1] == 1 && codes[2] == 0);
    memset(memory, 0, sizeof memory);
    CHECK(mooncake_store_batch_get_into(store, keys, buffers, sizes, 3, lengths) == 0);
    CHECK(lengths[0] == 1000 && lengths[1] == 1000 && lengths[2] == -704 && memory[0] == 1 && memory[1999] == 2);
    CHECK(mooncake_store_unregister_buffer(store, memory) == 0);

    CHECK(mooncake_store_remove(store, "k", 0) == -706 && mooncake_store_remove(store, "k", 1) == 0);
    CHECK(mooncake_store_remove(store, "k", 1) == -704 && mooncake_store_remove_by_regex(store, "^p$", 1) == 1);
    CHECK(mooncake_store_remove_by_regex(store, "(", 1) == -600 && mooncake_store_remove_all(store, 1) == 2);
    mooncake_store_destroy(store);
    mooncake_store_destroy(store);
    CHECK(mooncake_store_is_exist(store, "a") == -600);
    puts("ok");
    return 0;
}
"""

CPP_PROGRAM = r"""
#include <real_client.h>
#include <cstdio>
#include <cstring>

int main(int, char** argv) {
    auto client = mooncake::RealClient::create();
    if (client->setup_internal({{"local_hostname", "127.0.0.1"}, {"global_segment_size", "50%"}}).has_value()) return 1;
    mooncake::ConfigDict config{{"local_hostname", "127.0.0.1"}, {"metadata_server", "P2PHANDSHAKE"}, {"master_server_address", argv[1]},
                                {"global_segment_size", "33554432"}, {"protocol", "tcp"}, {"device_name", ""}};
    if (!client->setup_internal(config).has_value()) return 2;
    mooncake::PyClient& store = *client;
    static char memory[8192];
    if (store.register_buffer(memory, sizeof memory) != 0 || mooncake::globalConfig().max_mr_size < sizeof memory) return 3;
    std::memset(memory, 7, 4096);
    if (store.put_from("k", memory, 4096) != 0 || store.isExist("k") != 1 || store.isExist("none") != 0) return 4;
    if (store.get_into("k", memory + 4096, 4096) != 4096 || memory[8191] != 7) return 5;
    const std::string one("\x8f\0\x11", 3), two("\x8f\0\x22", 3);
    if (store.put_from(one, memory, 10) != 0 || store.isExist(two) != 0 || store.isExist("\x8f") != 0) return 7;
    if (store.put_from(two, memory, 20) != 0 || store.get_into(one, memory, 100) != 10 || store.get_into(two, memory, 100) != 20) return 8;
    if (store.unregister_buffer(memory) != 0 || store.tearDownAll() != 0 || store.isExist("k") >= 0) return 6;
    std::puts("ok");
}
"""


FORKING_PROGRAM = r"""
#include <store_c.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int over;

static void* call(void* store) {
    while (!over) mooncake_store_is_exist(store, "k");
    return NULL;
}

int main(void) {
    pthread_t threads[2];
    mooncake_store_t store = mooncake_store_create();
    int failed = 0;
    for (int i = 0; i < 2; ++i) pthread_create(&threads[i], NULL, call, store);
    for (int i = 0; i < 200; ++i) {
        int status = 0;
        pid_t child = fork();
        if (child == 0) {
            alarm(60); /* one that hangs is killed */
            _exit(mooncake_store_is_exist(store, "k") == -600 && mooncake_store_create() != store ? 0 : 1);
        }
        waitpid(child, &status, 0);
        if (status != 0) failed = 1;
        if (failed) break;
    }
    over = 1;
    for (int i = 0; i < 2; ++i) pthread_join(threads[i], NULL);
    puts(failed ? "a child failed" : "ok");
    return failed;
}
"""


@pytest.mark.parametrize("compiler, options, suffix, program", [("cc", ["-std=c99", "-pedantic"], "c", C_PROGRAM),
                                                                ("c++", ["-std=c++17"], "cpp", CPP_PROGRAM),
                                                                ("cc", ["-std=gnu99", "-pthread"], "c", FORKING_PROGRAM)],
                         ids=["C", "C++", "forks while others call"])
def test_program_builds_and_runs_against_the_package(master, tmp_path, compiler, options, suffix, program):
    source, built = tmp_path / f"program.{suffix}", tmp_path / "program"
    source.write_text(program)
    library = mooncake.get_library_dir()
    subprocess.run([compiler, *options, "-Wall", "-Wextra", "-Werror", str(source), f"-I{mooncake.get_include()}", f"-L{library}", f"-Wl,-rpath,{library}",
                    "-lmooncake_store", "-o", str(built)], check=True, timeout=PATIENCE_S)
    done = subprocess.run([str(built), master.address], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


RACING_PROGRAM = r"""
#include <real_client.h>
#include <cstdio>
#include <thread>

int main() {
    mooncake::RealClient client;
    std::thread other([&] {
        for (int i = 0; i < 300000; ++i) (void)client.isExist("k");
    });
    for (int i = 0; i < 300000; ++i) (void)client.tearDownAll();
    other.join();
    std::puts("ok");
}
"""


def test_a_client_may_be_torn_down_while_others_use_it(tmp_path):
    """The class lives in its header, so a sanitizer in the caller's program sees all of it."""
    source, built, library = tmp_path / "program.cpp", tmp_path / "program", mooncake.get_library_dir()
    source.write_text(RACING_PROGRAM)
    # Address-space randomisation can collide with the sanitizer's fixed mappings.
    watched, fixed = ["c++", "-std=c++17", "-fsanitize=thread", "-x", "c++"], ["setarch", "-R"]
    tried = subprocess.run([*watched, "-", "-o", str(built)], input="int main() {}", text=True, capture_output=True, timeout=PATIENCE_S)
    if tried.returncode != 0 or subprocess.run([*fixed, str(built)], capture_output=True, timeout=PATIENCE_S).returncode != 0:
        pytest.skip("no thread sanitizer here")
    subprocess.run([*watched, str(source), f"-I{mooncake.get_include()}", f"-L{library}", f"-Wl,-rpath,{library}", "-lmooncake_store", "-o", str(built)],
                   check=True, timeout=PATIENCE_S)
    done = subprocess.run([*fixed, str(built)], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
