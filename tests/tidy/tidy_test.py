# SPDX-License-Identifier: Apache-2.0
"""Our sources keep the rules of tidy.py, and each of those rules can fail."""

from pathlib import Path

import pytest
import tidy

ROOT = Path(__file__).resolve().parents[2]
SPDX = "// SPDX-License-Identifier: Apache-2.0\n"


def test_the_sources_keep_the_rules():
    assert tidy.check_tree(ROOT) == []


def test_the_tree_that_is_checked_is_ours():
    files = tidy.source_files(ROOT)
    assert "src/base/error.h" in files and "tests/tidy/tidy_test.py" in files
    assert len(files) > 50


# ---- sizes


@pytest.mark.parametrize("path", ["src/base/a.cpp", "python/mooncake/a.py"])
def test_a_file_of_600_lines_is_too_long(path):
    assert tidy.file_length(path, "x\n" * 599) == []
    assert len(tidy.file_length(path, "x\n" * 600)) == 1


def body(lines: int) -> str:
    return "    step();\n" * lines


CPP_HEADS = [
    "void free_function() {\n",
    "namespace a::b {\nResult<std::map<int, int>> Class::method(int x) const noexcept {\n",
    "class A {\npublic:\n    A() : x_{1}, y_(2) {\n",
    "class A : public B {\n    explicit A(int x) noexcept : B{x}, map_{{1, 2}} {\n",
    "struct A final {\n    bool operator==(const A& other) const {\n",
    "template <typename T>\nrequires std::integral<T>\nauto f(T x) -> decltype(x) {\n",
    "class MC_THREAD_ATTRIBUTE(capability(\"mutex\")) Mutex {\n    void lock() MC_THREAD_ATTRIBUTE(acquire_capability()) {\n",
    "TEST(Suite, DoesThis) {\n",
    "extern \"C\" {\nint c_function(void) {\n",
    "int array[] = {1, 2, 3};\nconst auto table = std::array{1, 2};\nvoid after_initialisers() {\n",
    "void with_a_default(int x = 3, std::vector<int> y = {1, 2}) {\n",
]


@pytest.mark.parametrize("head", CPP_HEADS)
def test_a_cpp_function_of_70_lines_is_too_long(head):
    fits, too_long = head + body(60) + "}\n", head + body(75) + "}\n"
    assert tidy.function_length("src/base/a.cpp", fits + "\nvoid next() {\n" + body(10) + "}\n") == []
    assert len(tidy.function_length("src/base/a.cpp", too_long)) == 1


def test_the_exact_limit_of_a_cpp_function():
    assert tidy.function_length("src/base/a.cpp", "void f() {\n" + body(67) + "}\n") == []
    assert len(tidy.function_length("src/base/a.cpp", "void f() {\n" + body(68) + "}\n")) == 1


def test_braces_in_comments_strings_and_characters_do_not_count():
    odd = 'void f() {\n    // {\n    /* { */ g("{", \'{\', R"({)");\n    const int n = 1\'000\'000;\n}\n'
    assert list(tidy.cpp_functions(odd + "void next() {\n}\n")) == [(1, 5), (6, 7)]


def test_a_long_class_or_table_is_no_long_function():
    long_class = "class A {\npublic:\n" + "    int x() const { return 1; }\n" * 100 + "};\n"
    long_table = "constexpr int kTable[] = {\n" + "    1,\n" * 100 + "};\n"
    assert tidy.function_length("src/base/a.h", long_class + long_table) == []


def test_a_lambda_counts_to_its_function():
    text = "void f() {\n    g([] {\n" + body(70) + "    });\n}\n"
    assert len(tidy.function_length("src/base/a.cpp", text)) == 1


def test_a_python_function_of_70_lines_is_too_long():
    assert tidy.function_length("a.py", "def f():\n" + "    x = 1\n" * 68) == []
    assert len(tidy.function_length("a.py", "def f():\n" + "    x = 1\n" * 69)) == 1
    assert len(tidy.function_length("a.py", "class A:\n    async def f(self):\n" + "        x = 1\n" * 69)) == 1


# ---- threads


def test_every_thread_is_in_the_table_and_the_other_way_round():
    texts = {"src/a/a.cpp": 'start_thread("mc-one", f); pool({.name = "mc-two-{}"});', "src/a/a_test.cpp": 'start_thread("mc-test", f);'}
    assert tidy.thread_table(texts, "| one | `mc-one`, `mc-two-N` |") == []
    assert tidy.thread_table(texts, "| one | `mc-one` |") == ["src/a/a.cpp: thread mc-two-N is not in the table of docs/architecture.md"]
    table = "## 5. Threads\n| one | `mc-one` | `any` |\n| two | `mc-two-N`, `mc-three` | |\n## 6. More\n| a | `word` | |\n"
    assert tidy.thread_table(texts, table) == ["docs/architecture.md: there is no thread mc-three"]
    for started in ('try_start_thread(format_text("http-{}", i), f);', 'repeat("http-{}", 1s, f);'):
        assert tidy.thread_table({"apps/a.cpp": started}, "| one | `http-N` | |") == []
        assert tidy.thread_table({"apps/a.cpp": started}, "") == ["apps/a.cpp: thread http-N is not in the table of docs/architecture.md"]


# ---- layers


@pytest.mark.parametrize("path, include", [
    ("src/base/a.cpp", "metrics/metrics.h"),
    ("src/metrics/a.h", "net/socket.h"),
    ("src/net/a.cpp", "topology/topology.h"),
    ("src/transport/tcp/a.cpp", "rpc/rpc.h"),
    ("src/rpc/a.cpp", "coordination/directory.h"),
    ("src/transport/a.cpp", "engine/engine.h"),
    ("src/engine/a.cpp", "kvplan/plan.h"),
    ("src/engine/a.cpp", "store/client/client.h"),
    ("src/store/allocation/a.cpp", "store/protocol/messages.h"),
    ("src/store/master/a.cpp", "store/node/node.h"),
    ("src/store/member/a.cpp", "store/node/catalogue.h"),
    ("src/store/node/a.cpp", "store/client/pool_client.h"),
    ("src/store/client/a.cpp", "store/node/node.h"),
    ("src/store/client/a.cpp", "store/process/store_client.h"),
    ("src/engine/a.cpp", "capi/faces.h"),
    ("src/engine/a.cpp", "mooncake/transfer_engine.h"),
    ("src/unknown/a.cpp", "base/error.h"),
])
def test_a_layer_may_not_use_one_above_or_beside(path, include):
    assert len(tidy.layers(path, f'#include "{include}"\n')) == 1


@pytest.mark.parametrize("path, include", [
    ("src/base/a.cpp", "base/error.h"),
    ("src/engine/a.cpp", "transport/transport.h"),
    ("src/rpc/a.cpp", "rpc_generated.h"),
    ("src/store/master/a.cpp", "store/protocol/messages.h"),
    ("src/store/node/a.cpp", "store/member/pool_access.h"),
    ("src/store/client/a.cpp", "store/member/pool_access.h"),
    ("src/store/process/a.cpp", "store/node/node.h"),
    ("src/store/process/a.cpp", "store/client/pool_client.h"),
    ("src/capi/a.cpp", "mooncake/transfer_engine_c.h"),
    ("src/capi/a.cpp", "engine/engine.h"),
    ("apps/a.cpp", "engine/engine.h"),
    ("python/src/a.cpp", "engine/engine.h"),
    ("src/base/a_test.cpp", "engine/engine.h"),
    ("src/transport/testing/a.h", "engine/engine.h"),
])
def test_a_layer_may_use_itself_and_those_below(path, include):
    assert tidy.layers(path, f'#include "{include}"\n') == []


def test_a_transport_may_not_use_another():
    assert len(tidy.transports_apart("src/transport/tcp/a.cpp", '#include "transport/shm/b.h"\n')) == 1
    assert tidy.transports_apart("src/transport/tcp/a.cpp", '#include "transport/tcp/b.h"\n#include "transport/transport.h"\n') == []


@pytest.mark.parametrize("path, line", [
    ("src/store/member/a.cpp", 'if (name == "shm") return;'),
    ("src/engine/a.cpp", 'router.has("fabric");'),
    ("src/engine/a.cpp", 'if (maker.name != "tcp") return;'),
    ("src/engine/a.cpp", '#include "transport/shm/shm.h"'),
    ("src/engine/transports.cpp", 'if (maker.name == "fabric") return;'),
])
def test_nobody_asks_for_a_transport_by_its_name(path, line):
    assert len(tidy.transports_unnamed(path, line + "\n")) == 1


@pytest.mark.parametrize("path, line", [
    ("src/engine/transports.cpp", '#include "transport/shm/shm.h"'),
    ("src/engine/transports.cpp", '    {.name = "fabric",'),
    ("src/engine/a.cpp", '#include "transport/transport.h"'),
    ("src/engine/a.cpp", 'std::string name;  // "self", "shm"'),
    ("src/engine/a_test.cpp", 'EXPECT_EQ(path, "shm");'),
    ("src/transport/shm/a.cpp", 'constexpr std::string_view kName = "shm";'),
    ("src/store/process/a.h", 'std::string protocol = "tcp";'),
])
def test_its_own_folder_and_the_list_of_transports_may_name_it(path, line):
    assert tidy.transports_unnamed(path, line + "\n") == []


@pytest.mark.parametrize("include", ['"base/error.h"', "<boost/asio.hpp>", "<fmt/core.h>"])
def test_an_installed_header_names_only_the_standard_library_and_itself(include):
    assert len(tidy.public_headers("include/mooncake/a.h", f"#include {include}\n")) == 1
    assert tidy.public_headers("include/mooncake/a.h", '#include <string>\n#include "mooncake/b.h"\n') == []


# ---- form


def test_a_header_needs_spdx_and_pragma_once():
    assert tidy.header_form("src/a.h", SPDX + "#pragma once\n") == []
    assert len(tidy.header_form("src/a.h", SPDX)) == 1
    assert len(tidy.header_form("include/mooncake/a_c.h", SPDX + "#pragma once\n")) == 1
    assert tidy.header_form("include/mooncake/a_c.h", SPDX + "#ifndef A_C_H\n") == []
    assert len(tidy.header_form("src/a.h", "#pragma once\n")) == 1
    assert len(tidy.header_form("src/a.h", "")) == 2
    assert len(tidy.header_form("python/a.py", "import os\n")) == 1
    assert tidy.header_form("bench/a.py", "#!/usr/bin/env python3\n# SPDX-License-Identifier: Apache-2.0\n") == []


@pytest.mark.parametrize("include", ["boost/asio.hpp", "spdlog/spdlog.h", "nlohmann/json.hpp", "flatbuffers/flatbuffers.h", "prometheus/counter.h"])
def test_heavy_headers_stay_out_of_headers(include):
    text = SPDX + f"#pragma once\n#include <{include}>\n"
    assert len(tidy.header_form("src/net/a.h", text)) == 1
    assert tidy.header_form("src/net/a.cpp", text) == []


def test_a_heavy_header_may_say_that_it_is_for_cpp_files_and_then_no_header_uses_it():
    heavy = SPDX + "#pragma once\n#include <flatbuffers/flatbuffers.h>\n// Include only in .cpp files: it is heavy.\n"
    user = SPDX + '#pragma once\n#include "rpc/heavy.h"\n'
    assert tidy.header_form("src/rpc/heavy.h", heavy) == []
    assert tidy.heavy_headers({"src/rpc/heavy.h": heavy, "src/rpc/a.cpp": user}) == []
    assert len(tidy.heavy_headers({"src/rpc/heavy.h": heavy, "src/rpc/a.h": user})) == 1
    assert tidy.heavy_headers({"src/rpc/heavy.h": heavy, "src/rpc/a.h": user + "// Include only in .cpp files, too.\n"}) == []


@pytest.mark.parametrize("path, line", [
    ("src/net/a.cpp", "std::getenv(\"X\");"),
    ("apps/a.cpp", "::secure_getenv(\"X\");"),
    ("src/net/a.cpp", "thread.detach();"),
    ("src/net/a_test.cpp", "thread->detach();"),
    ("src/net/a.cpp", "volatile int x;"),
    ("src/net/a.cpp", "std::this_thread::sleep_for(1ms);"),
    ("src/net/a.cpp", "usleep(5);"),
    ("src/store/node/a.cpp", "::madvise(address, size, MADV_POPULATE_WRITE);"),
    ("src/engine/a.cpp", "#ifdef USE_CUDA"),
    ("src/engine/a.cpp", "#if defined(WITH_EFA) && 1"),
    ("src/transport/a.cpp", "#ifdef __CUDACC__"),
])
def test_banned(path, line):
    assert len(tidy.banned(path, SPDX + line + "\n")) == 1


@pytest.mark.parametrize("path, line", [
    ("src/base/options.cpp", "std::getenv(name);"),
    ("src/net/a.cpp", "// getenv( and sleep_for( are not used here"),
    ("src/net/a.cpp", "log(\"volatile\");"),
    ("src/net/a.cpp", "asm volatile(\"yield\");"),
    ("src/net/a_test.cpp", "std::this_thread::sleep_for(1ms);"),
    ("src/device/cuda/a.cpp", "#ifdef USE_CUDA"),
    ("src/transport/cuda/a.cpp", "#ifdef USE_CUDA"),
    ("src/base/a.cpp", "#if defined(__x86_64__)"),
])
def test_not_banned(path, line):
    assert tidy.banned(path, SPDX + line + "\n") == []


@pytest.mark.parametrize("word", ["TO" + "DO", "FIX" + "ME", "XX" + "X"])
def test_nothing_is_left_for_later(word):
    assert len(tidy.unfinished("src/a.cpp", f"// {word}: later\n")) == 1
    assert tidy.unfinished("src/a.cpp", f"// {word}S\n") == []
