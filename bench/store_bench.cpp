// SPDX-License-Identifier: Apache-2.0
// The store from one client to a node in another process on this host: by mapped memory, over TCP, and as a thin client of that node. Figures are medians, and also
// given as ratios to a copy in memory, to the engine alone, or to a round trip to the master, measured in the same run.
//   store_bench [--seconds=1 per case] [--path=shm|tcp|thin|all] [--best: the least instead of the median, for a machine that others use]
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/incarnation.h"
#include "engine/engine.h"
#include "store/bridge/client/thin_client.h"
#include "store/bridge/server/bridge_server.h"
#include "store/process/store_client.h"
#include "store/service/master_server.h"

extern char** environ;

namespace {

using namespace mooncake;
using namespace mooncake::store;

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kSegmentBytes = 1024 * kMiB;
Duration case_time = 1s;
bool best = false;

void must(bool good, const char* what) {
    if (good) return;
    std::fprintf(stderr, "%s failed\n", what);
    std::exit(1);
}

enum class Way { kShm, kTcp, kThin };
constexpr const char* kNames[] = {"shm", "tcp", "thin"};

std::unique_ptr<StoreClient> make_thin(const std::string& node) {
    bridge::ThinConfig config;
    config.server_address = node;
    auto client = bridge::ThinClient::create(std::move(config));
    must(client.has_value(), "setup_dummy");
    return std::move(*client);
}

std::unique_ptr<StoreClient> make_client(const std::string& master, bool tcp, uint64_t segment_bytes) {
    StoreConfig config;
    config.local_hostname = "127.0.0.1";
    config.master = master;
    config.segment_bytes = segment_bytes;
    config.buffer_bytes = 0;
    if (tcp) config.options.engine.transports = {"tcp"};
    auto client = StoreClient::create(std::move(config));
    must(client.has_value(), "setup");
    return std::move(*client);
}

/// The other process: master and node. Says whom to ask, and ends when its standard input does.
int serve(Way way) {
    auto server = MasterServer::create({});
    must(server.has_value(), "master");
    (*server)->start();
    const std::string address = format_text("127.0.0.1:{}", (*server)->port());
    const auto node = make_client(address, way == Way::kTcp, kSegmentBytes);
    std::unique_ptr<bridge::BridgeServer> thin;
    bridge::BridgeOptions options;
    for (int tries = 0; way == Way::kThin && !thin && tries < 100; ++tries) {
        options.port = static_cast<uint16_t>(1024 + random_u64() % 60'000);
        if (auto started = bridge::BridgeServer::start(*node, options)) thin = std::move(*started);
    }
    std::printf("%s\n", thin ? format_text("127.0.0.1:{}", options.port).c_str() : address.c_str());
    std::fflush(stdout);
    char byte = 0;
    while (::read(STDIN_FILENO, &byte, 1) > 0) {}
    thin.reset();
    node->close();
    (*server)->stop();
    return 0;
}

/// A child of this program in its other role; ends with this object.
class Server {
public:
    explicit Server(Way way) {
        int to[2], from[2];
        must(::pipe2(to, O_CLOEXEC) == 0 && ::pipe2(from, O_CLOEXEC) == 0, "pipe");
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, to[0], STDIN_FILENO);
        posix_spawn_file_actions_adddup2(&actions, from[1], STDOUT_FILENO);
        std::string name = "store_bench", role = std::string("--serve=") + kNames[static_cast<int>(way)];
        char* arguments[] = {name.data(), role.data(), nullptr};
        must(::posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, arguments, environ) == 0, "spawn");
        posix_spawn_file_actions_destroy(&actions);
        ::close(to[0]);
        ::close(from[1]);
        input_ = to[1];
        for (char byte = 0; ::read(from[0], &byte, 1) == 1 && byte != '\n';) address_.push_back(byte);
        ::close(from[0]);
    }
    ~Server() {
        ::close(input_);
        ::waitpid(pid_, nullptr, 0);
    }
    const std::string& address() const { return address_; }

private:
    pid_t pid_ = 0;
    int input_ = -1;
    std::string address_;
};

double median_us(const std::function<void()>& call, const std::function<void()>& between = {}) {
    std::vector<Duration> times;
    const Time end = Clock::now() + case_time;
    for (int warm = 0; warm < 3; ++warm) {
        call();
        if (between) between();
    }
    while (Clock::now() < end || times.size() < 5) {
        const Time before = Clock::now();
        call();
        times.push_back(Clock::now() - before);
        if (between) between();
    }
    const size_t place = best ? 0 : times.size() / 2;
    std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(place), times.end());
    return std::chrono::duration<double, std::micro>(times[place]).count();
}

/// Some values of one size, in registered memory.
class Batch {
public:
    Batch(StoreClient& client, size_t count, uint64_t length) : client_(client), count_(count), length_(length) {
        if (client.engine() != nullptr) {
            memory_ = static_cast<std::byte*>(client.engine()->allocate_memory(count * length).value());
        } else {
            memory_ = client.allocate_shared(count * length);
            must(client.register_buffer(memory_, count * length) == StoreCode::kOk, "register");
        }
        for (uint64_t i = 0; i < count * length; ++i) memory_[i] = static_cast<std::byte>(i * 31 + i / 4096);
        rename();
    }
    ~Batch() {
        if (client_.engine() != nullptr) (void)client_.engine()->free_memory(memory_);
        else (void)client_.unregister_buffer(memory_);
    }

    void rename() {
        ++round_;
        names_.clear();
        pieces_.clear();
        for (size_t i = 0; i < count_; ++i) {
            names_.push_back(format_text("bench/{}/{:08}/{:06}", length_, round_, i));
            pieces_.push_back({memory_ + i * length_, length_});
        }
        keys_.assign(names_.begin(), names_.end());
        writes_.clear();
        reads_.clear();
        for (size_t i = 0; i < count_; ++i) {
            writes_.push_back({.key = keys_[i], .pieces = {&pieces_[i], 1}});
            reads_.push_back({.key = keys_[i], .pieces = {&pieces_[i], 1}});
        }
    }
    void put() {
        for (const StoreCode code : client_.write(writes_, {}, false)) must(code == StoreCode::kOk, "put");
    }
    void get() {
        for (const int64_t got : client_.read(reads_)) must(got == static_cast<int64_t>(length_), "get");
    }
    /// The next of them, by itself.
    void get_one() { must(client_.read({&reads_[next_++ % count_], 1})[0] == static_cast<int64_t>(length_), "get"); }
    void remove() {
        for (const StoreCode code : client_.remove(keys_, true)) must(code == StoreCode::kOk, "remove");
    }
    void exist() {
        for (const int32_t there : client_.exist(keys_)) must(there == 1, "exist");
    }
    uint64_t bytes() const { return count_ * length_; }
    double count() const { return static_cast<double>(count_); }
    std::byte* memory() { return memory_; }
    std::span<const std::string_view> keys() const { return keys_; }

private:
    StoreClient& client_;
    const size_t count_;
    const uint64_t length_;
    std::byte* memory_ = nullptr;
    uint64_t round_ = 0;
    size_t next_ = 0;
    std::vector<std::string> names_;
    std::vector<std::string_view> keys_;
    std::vector<Piece> pieces_;
    std::vector<ValueToWrite> writes_;
    std::vector<ValueToRead> reads_;
};

double copy_us(uint64_t bytes) {
    std::vector<std::byte> from(bytes, std::byte{1}), to(bytes, std::byte{2});
    return median_us([&] {
        for (uint64_t at = 0; at < bytes; at += kMiB) std::memcpy(to.data() + at, from.data() + at, std::min(kMiB, bytes - at));
    });
}

/// The engine moving the same bytes from and to the node's segment, without the store.
double engine_us(StoreClient& client, Batch& batch, Direction direction) {
    std::vector<Block> blocks;
    std::string endpoint;
    size_t i = 0;
    for (const ValueInfo& info : client.find(batch.keys())) {
        must(info.code == StoreCode::kOk, "find");
        endpoint = info.replicas[0].endpoint;
        blocks.push_back({.local = batch.memory() + i++ * info.length, .remote = info.replicas[0].address, .length = info.length});
    }
    return median_us([&] { must(client.engine()->transfer(endpoint, direction, blocks, Deadline::after(10s)).has_value(), "transfer"); });
}

double gigabytes(uint64_t bytes, double us) { return static_cast<double>(bytes) / us / 1000; }

void bench_large(StoreClient& client, const char* path) {
    Batch batch(client, 32, kMiB);
    const double copy = copy_us(batch.bytes());
    const double put = median_us([&] { batch.put(); },
                                 [&] {
                                     batch.remove();
                                     batch.rename();
                                 });
    batch.put();
    const double get = median_us([&] { batch.get(); });
    const double get_one = median_us([&] { batch.get_one(); });
    std::printf("%s  memcpy                %8.2f GB/s\n", path, gigabytes(batch.bytes(), copy));
    std::printf("%s  get 1 MiB             %8.2f GB/s   %.2f of memcpy\n", path, gigabytes(kMiB, get_one), copy / batch.count() / get_one);
    if (client.engine() == nullptr) {
        std::printf("%s  put 32 x 1 MiB        %8.2f GB/s   %.2f of memcpy\n", path, gigabytes(batch.bytes(), put), copy / put);
        std::printf("%s  get 32 x 1 MiB        %8.2f GB/s   %.2f of memcpy\n", path, gigabytes(batch.bytes(), get), copy / get);
        return batch.remove();
    }
    const double read = engine_us(client, batch, Direction::kRead);
    batch.get();
    const double write = engine_us(client, batch, Direction::kWrite);
    std::printf("%s  put 32 x 1 MiB        %8.2f GB/s   %.2f of memcpy, %.2f of the engine's write (%.2f GB/s)\n", path,
                gigabytes(batch.bytes(), put), copy / put, write / put, gigabytes(batch.bytes(), write));
    std::printf("%s  get 32 x 1 MiB        %8.2f GB/s   %.2f of memcpy, %.2f of the engine's read (%.2f GB/s)\n", path,
                gigabytes(batch.bytes(), get), copy / get, read / get, gigabytes(batch.bytes(), read));
    batch.remove();
}

void bench_small(StoreClient& client, const char* path) {
    Batch batch(client, 128, 4096);
    const double put = median_us([&] { batch.put(); },
                                 [&] {
                                     batch.remove();
                                     batch.rename();
                                 });
    batch.put();
    const double get = median_us([&] { batch.get(); });
    std::printf("%s  put 128 x 4 KiB       %8.0f keys/s (%.1f us)\n", path, batch.count() * 1e6 / put, put);
    std::printf("%s  get 128 x 4 KiB       %8.0f keys/s (%.1f us), leased\n", path, batch.count() * 1e6 / get, get);
    batch.remove();
    Batch one(client, 1, 4096);
    const double single_put = median_us([&] { one.put(); },
                                        [&] {
                                            one.remove();
                                            one.rename();
                                        });
    one.put();
    const double single_get = median_us([&] { one.get(); });
    const std::string_view missing = "bench/missing";
    const double round_trip = median_us([&] { must(client.exist({&missing, 1})[0] == 0, "exist"); });
    std::printf("%s  get 4 KiB, leased     %8.1f us\n", path, single_get);
    std::printf("%s  put 4 KiB             %8.1f us   %.1f round trips to the master (%.1f us)\n", path, single_put,
                single_put / round_trip, round_trip);
    one.remove();
}

void bench_exist(StoreClient& client, const char* path) {
    Batch batch(client, 1000, 64);
    batch.put();
    batch.exist();
    const double exist = median_us([&] { batch.exist(); });
    std::printf("%s  exist x 1000, leased  %8.2f M keys/s (%.1f us)\n", path, batch.count() / exist, exist);
    batch.remove();
}

void bench(Way way) {
    const char* const path = kNames[static_cast<int>(way)];
    const Server server(way);
    const auto client = way == Way::kThin ? make_thin(server.address()) : make_client(server.address(), way == Way::kTcp, 0);
    bench_large(*client, path);
    bench_small(*client, path);
    if (way != Way::kTcp) bench_exist(*client, path);
    std::fflush(stdout);
}

}  // namespace

int main(int count, char** arguments) {
    std::string path = "all";
    constexpr Way kWays[] = {Way::kShm, Way::kTcp, Way::kThin};
    for (int i = 1; i < count; ++i) {
        const std::string argument = arguments[i];
        for (const Way way : kWays)
            if (argument == std::string("--serve=") + kNames[static_cast<int>(way)]) return serve(way);
        if (argument.rfind("--seconds=", 0) == 0) case_time = std::chrono::milliseconds(static_cast<int>(1000 * std::atof(&argument[10])));
        if (argument == "--best") best = true;
        if (argument.rfind("--path=", 0) == 0) path = argument.substr(7);
    }
    configure_log({.level = LogLevel::kWarning});
    for (const Way way : kWays)
        if (path == "all" || path == kNames[static_cast<int>(way)]) bench(way);
    return 0;
}
