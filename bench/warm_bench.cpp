// SPDX-License-Identifier: Apache-2.0
// What memory that outlives its node costs, and what it gives. Puts to a node with a journal and to one without, by turns in one run, as ratios; then a node with many
// values is killed and started again: how long until it serves them, and how many are there.
//   warm_bench [--objects=1000000] [--bytes=4096: of each] [--seconds=2: of puts, per size] [--dir=/dev/shm]
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "store/process/store_client.h"
#include "store/service/master_server.h"

extern char** environ;

namespace {

using namespace mooncake;
using namespace mooncake::store;

void must(bool good, const char* what) {
    if (good) return;
    std::fprintf(stderr, "%s failed\n", what);
    std::exit(1);
}

std::unique_ptr<StoreClient> make_client(const std::string& master, uint64_t segment_bytes, const std::string& warm = {}) {
    StoreConfig config;
    config.local_hostname = "127.0.0.1";
    config.master = master;
    config.segment_bytes = segment_bytes;
    config.buffer_bytes = 0;
    config.options.warm_dir = warm;
    auto client = StoreClient::create(std::move(config));
    must(client.has_value(), "setup");
    return std::move(*client);
}

/// This program in another role: "master" (prints its address), or "node ADDRESS BYTES DIRECTORY|-" (prints a line when it serves). Ends with its standard input.
int play(char** arguments) {
    std::unique_ptr<MasterServer> server;
    std::unique_ptr<StoreClient> node;
    if (std::string(arguments[0]) == "master") {
        auto made = MasterServer::create({});
        must(made.has_value(), "master");
        server = std::move(*made);
        server->start();
        std::printf("127.0.0.1:%u\n", server->port());
    } else {
        const std::string folder = arguments[3];
        node = make_client(arguments[1], std::strtoull(arguments[2], nullptr, 10), folder == "-" ? "" : folder);
        std::printf("%s\n", node->name().c_str());
    }
    std::fflush(stdout);
    char byte = 0;
    while (::read(STDIN_FILENO, &byte, 1) > 0) {}
    if (node) node->close();
    if (server) server->stop();
    return 0;
}

class Role {
public:
    explicit Role(std::vector<std::string> words) {
        int to[2], from[2];
        must(::pipe2(to, O_CLOEXEC) == 0 && ::pipe2(from, O_CLOEXEC) == 0, "pipe");
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, to[0], STDIN_FILENO);
        posix_spawn_file_actions_adddup2(&actions, from[1], STDOUT_FILENO);
        words.insert(words.begin(), {"warm_bench", "--role"});
        std::vector<char*> arguments;
        for (std::string& word : words) arguments.push_back(word.data());
        arguments.push_back(nullptr);
        must(::posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, arguments.data(), environ) == 0, "spawn");
        posix_spawn_file_actions_destroy(&actions);
        ::close(to[0]);
        ::close(from[1]);
        input_ = to[1];
        for (char byte = 0; ::read(from[0], &byte, 1) == 1 && byte != '\n';) line.push_back(byte);
        ::close(from[0]);
        must(!line.empty(), "another process");
    }
    ~Role() {
        ::close(input_);
        ::waitpid(pid_, nullptr, 0);
    }
    void kill() const { ::kill(pid_, SIGKILL); }

    std::string line;

private:
    pid_t pid_ = 0;
    int input_ = -1;
};

/// `count` values of one size, put under new names each time.
class Puts {
public:
    Puts(StoreClient& client, size_t count, uint64_t length) : client_(client), count_(count), memory_(count * length) {
        for (size_t i = 0; i < memory_.size(); ++i) memory_[i] = static_cast<std::byte>(i * 31 + i / 4096);
        for (size_t i = 0; i < count; ++i) pieces_.push_back({memory_.data() + i * length, length});
    }
    void name(uint64_t round) {
        names_.clear();
        for (size_t i = 0; i < count_; ++i) names_.push_back(format_text("bench/{:08}/{:06}", round, i));
        keys_.assign(names_.begin(), names_.end());
    }
    Duration put() {
        std::vector<ValueToWrite> writes;
        for (size_t i = 0; i < count_; ++i) writes.push_back({.key = keys_[i], .pieces = {&pieces_[i], 1}});
        const Time before = Clock::now();
        for (const StoreCode code : client_.write(writes, {}, false)) must(code == StoreCode::kOk, "put");
        return Clock::now() - before;
    }
    void remove() {
        for (const StoreCode code : client_.remove(keys_, true)) must(code == StoreCode::kOk, "remove");
    }
    size_t right() {
        std::vector<std::byte> into(memory_.size());
        std::vector<Piece> pieces;
        std::vector<ValueToRead> reads;
        for (size_t i = 0; i < count_; ++i) pieces.push_back({into.data() + (pieces_[i].data - memory_.data()), pieces_[i].length});
        for (size_t i = 0; i < count_; ++i) reads.push_back({.key = keys_[i], .pieces = {&pieces[i], 1}});
        size_t right = 0;
        const auto got = client_.read(reads);
        for (size_t i = 0; i < count_; ++i)
            right += got[i] == static_cast<int64_t>(pieces[i].length) &&
                     std::memcmp(pieces[i].data, pieces_[i].data, pieces[i].length) == 0;
        return right;
    }

private:
    StoreClient& client_;
    const size_t count_;
    std::vector<std::byte> memory_;
    std::vector<Piece> pieces_;
    std::vector<std::string> names_;
    std::vector<std::string_view> keys_;
};

double median_us(std::vector<Duration>& times) {
    const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
    std::nth_element(times.begin(), middle, times.end());
    return std::chrono::duration<double, std::micro>(*middle).count();
}

void bench_puts(const std::string& folder, Duration time) {
    constexpr uint64_t kBytes = 1 << 30;
    const Role master({"master"}), other_master({"master"});
    const Role plain({"node", master.line, std::to_string(kBytes), "-"});
    const Role warm({"node", other_master.line, std::to_string(kBytes), folder});
    const auto to_plain = make_client(master.line, 0), to_warm = make_client(other_master.line, 0);
    std::printf("%-28s %12s %12s %8s\n", "put, from another process", "without, us", "with, us", "ratio");
    for (const auto& [count, length] : {std::pair<size_t, uint64_t>{1, 4096}, {128, 4096}, {1, 1 << 20}, {32, 1 << 20}}) {
        Puts a(*to_plain, count, length), b(*to_warm, count, length);
        std::vector<Duration> without, with;
        const Time end = Clock::now() + time;
        for (uint64_t round = 0; round < 5 || Clock::now() < end; ++round) {
            a.name(round);
            b.name(round);
            without.push_back(a.put());
            with.push_back(b.put());
            a.remove();
            b.remove();
        }
        const double one = median_us(without), other = median_us(with);
        std::printf("%4zu x %8llu bytes          %12.1f %12.1f %8.2f\n", count, static_cast<unsigned long long>(length), one, other,
                    other / one);
    }
}

void bench_restart(const std::string& folder, uint64_t objects, uint64_t length) {
    constexpr size_t kBatch = 1000;
    const uint64_t bytes = objects * (length + 256) / 10 * 12 + (64 << 20);
    const Role master({"master"});
    const std::vector<std::string> words{"node", master.line, std::to_string(bytes), folder};
    const auto client = make_client(master.line, 0);
    Time before = Clock::now();
    auto node = std::make_unique<Role>(words);
    const double cold = std::chrono::duration<double>(Clock::now() - before).count();
    Puts puts(*client, kBatch, length);
    for (uint64_t i = 0; i < objects / kBatch; ++i) {
        puts.name(i);
        puts.put();
    }
    const double journal = static_cast<double>(std::filesystem::file_size(folder + "/journal"));
    node->kill();
    node.reset();
    before = Clock::now();
    node = std::make_unique<Role>(words);
    const double seconds = std::chrono::duration<double>(Clock::now() - before).count();
    size_t right = 0;
    for (uint64_t i = 0; i < objects / kBatch; ++i) {
        puts.name(i);
        right += puts.right();
    }
    const double gib = static_cast<double>(objects * length) / (1 << 30);
    std::printf(
        "restart: %llu values of %llu bytes (%.2f GiB); journal %.1f MB; first start %.2f s, the next %.2f s (%.2f s per 10 GiB); %zu "
        "values right\n",
        static_cast<unsigned long long>(objects), static_cast<unsigned long long>(length), gib, journal / 1e6, cold, seconds,
        seconds / gib * 10, right);
}

}  // namespace

int main(int count, char** arguments) {
    configure_log({.level = LogLevel::kError});
    if (count > 2 && std::string(arguments[1]) == "--role") return play(arguments + 2);
    uint64_t objects = 1'000'000, bytes = 4096, seconds = 2;
    std::string dir = "/dev/shm";
    for (int i = 1; i < count; ++i) {
        const std::string word = arguments[i];
        const auto number = [&](const char* name, uint64_t& value) {
            if (word.starts_with(name)) value = std::strtoull(word.c_str() + std::strlen(name), nullptr, 10);
        };
        number("--objects=", objects);
        number("--bytes=", bytes);
        number("--seconds=", seconds);
        if (word.starts_with("--dir=")) dir = word.substr(6);
    }
    std::string folder = dir + "/mc_warm_bench_XXXXXX";
    must(::mkdtemp(folder.data()) != nullptr, "a directory");
    if (seconds != 0) bench_puts(folder, std::chrono::seconds(seconds));
    if (objects != 0) bench_restart(folder, objects, bytes);
    std::filesystem::remove_all(folder);
    return 0;
}
