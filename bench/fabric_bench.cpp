// SPDX-License-Identifier: Apache-2.0
// The fabric transport against a plain loop over libfabric, in the same run: both between two processes, over the tcp profile and
// loopback, with the same provider, flags and memory. Of the plain loop both sides only post and poll, and never sleep: the best that
// can be done with the library. Ours has the default settings, unless told otherwise.
//
// The two take turns many times, because loopback has faster and slower moments; what is told is the median over the turns. The plain
// target stands still while it is not its turn.
//     fabric_bench [seconds per case] [check] [spin=us] [node=address] [only=write4|write64|write1024|read4|...]
// With `check` it exits with 1 when something is slower than it should be.
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "child.h"
#include "transport/fabric/fabric.h"
#include "transport/fabric/profile.h"
#include "transport/testing/socket_control.h"

namespace mooncake {
namespace {

constexpr uint64_t kPool = 64 << 20;
constexpr int kTurns = 10;

struct Pair {
    int ours = -1, theirs = -1;
    Pair() {
        int both[2];
        MC_CHECK(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, both) == 0);
        ours = both[0];
        theirs = both[1];
    }
};

std::byte* touched_pool() {
    void* const memory = ::mmap(nullptr, kPool, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    std::memset(memory, 1, kPool);
    return static_cast<std::byte*>(memory);
}

struct Announcement {
    Incarnation incarnation;
    uint64_t pool = 0, key = 0;
    uint32_t length = 0;
    char bytes[4096] = {};
};

Announcement receive(int socket) {
    Announcement there;
    MC_CHECK(::recv(socket, &there, sizeof there, 0) == sizeof there);
    return there;
}

// ---- the plain loop

struct Plain {
    explicit Plain(const std::string& node) {
        api = fabric::load_library("").value();
        const fabric::ProviderProfile& profile = *fabric::find_profile("tcp");
        FabricOptions options;
        options.nodes = {node};
        const fabric::ProviderQueries queries = fabric::queries_for(profile, api->version(), options, false).value();
        for (const auto& attempt : queries.tries) {
            const auto offers = api->offers(attempt[0]).value();
            if (offers.empty()) continue;
            offer = offers[0];
            break;
        }
        domain = api->open(offer, {}).value();
        endpoint = domain->open_endpoint().value();
        pool = touched_pool();
        key = domain->register_memory({.address = pool, .length = kPool, .key = random_u64()}).value();
    }
    std::shared_ptr<fabric::FabricApi> api;
    fabric::Offer offer;
    std::unique_ptr<fabric::Domain> domain;
    std::unique_ptr<fabric::Endpoint> endpoint;
    std::byte* pool = nullptr;
    std::unique_ptr<fabric::MemoryKey> key;
};

class PlainTarget {
public:
    explicit PlainTarget(const std::string& node) : child_([&] { serve(node); }) {}

    Announcement there() const { return receive(pair_.ours); }
    void stop() const { child_.stop(); }
    void resume() const { child_.resume(); }

private:
    void serve(const std::string& node) const {
        Plain plain(node);
        Announcement here{.pool = reinterpret_cast<uint64_t>(plain.pool), .key = plain.key->key()};
        here.length = static_cast<uint32_t>(plain.endpoint->name().size());
        std::memcpy(here.bytes, plain.endpoint->name().data(), here.length);
        MC_CHECK(::send(pair_.theirs, &here, sizeof here, 0) == sizeof here);
        fabric::Finished finished[64];
        for (;;) plain.domain->poll(finished);
    }

    const Pair pair_;
    const Child child_;
};

class PlainLoop {
public:
    PlainLoop(const PlainTarget& target, const std::string& node) : here_(node), there_(target.there()) {
        const auto* const name = reinterpret_cast<const std::byte*>(there_.bytes);
        peer_ = here_.domain->insert_address({name, there_.length}).value();
    }
    /// Moves `count` blocks, all posted before the first is awaited.
    void call(Direction direction, size_t size, size_t count) {
        contexts_.resize(count);
        size_t posted = 0, done = 0;
        fabric::Finished finished[64];
        while (done < count) {
            if (posted < count) {
                const auto result = here_.endpoint->post({.direction = direction,
                                                          .local = here_.pool + posted * size,
                                                          .length = size,
                                                          .peer = peer_,
                                                          .remote = (here_.offer.virtual_addresses ? there_.pool : 0) + posted * size,
                                                          .key = there_.key,
                                                          .context = &contexts_[posted]});
                if (result.value()) {
                    ++posted;
                    continue;
                }
            }
            done += here_.domain->poll(finished);
        }
    }

private:
    Plain here_;
    const Announcement there_;
    fabric::AddressHandle peer_ = 0;
    std::vector<fabric::OperationContext> contexts_;
};

// ---- the transport

struct Host {
    Host(const EngineOptions& given, int socket) : options(given), control(socket) {
        transport =
            fabric::make_fabric_transport({.incarnation = incarnation, .options = options, .access = access, .control = control}).value();
        pool = touched_pool();
        region = {.address = pool, .length = kPool};
        registration = transport->register_memory(region).value();
    }
    const EngineOptions options;
    Incarnation incarnation = Incarnation::random();
    AccessTable access;
    testing::SocketControl control;
    std::unique_ptr<Transport> transport;
    std::byte* pool = nullptr;
    MemoryRegion region;
    std::unique_ptr<Registration> registration;
};

class OurTarget {
public:
    explicit OurTarget(const EngineOptions& options) : child_([&] { serve(options); }) {}

    Announcement there() const { return receive(pair_.ours); }
    int socket() const { return pair_.ours; }
    pid_t pid() const { return child_.pid(); }

private:
    void serve(const EngineOptions& options) const {
        Host host(options, pair_.theirs);
        Announcement here{.incarnation = host.incarnation, .pool = reinterpret_cast<uint64_t>(host.pool)};
        const std::string endpoint = host.transport->endpoint();
        here.length = static_cast<uint32_t>(endpoint.size());
        std::memcpy(here.bytes, endpoint.data(), endpoint.size());
        MC_CHECK(::send(pair_.theirs, &here, sizeof here, 0) == sizeof here);
        host.control.start();
        for (;;) ::pause();
    }

    const Pair pair_;
    const Child child_;
};

class OurLoop {
public:
    OurLoop(const OurTarget& target, const EngineOptions& options)
        : there_(target.there()), here_(options, target.socket()), peer_(connect()) {}

    std::unique_ptr<Peer> connect() {
        SegmentDescriptor descriptor{.name = "target", .incarnation = there_.incarnation};
        descriptor.endpoints["fabric"] = std::string(there_.bytes, there_.length);
        auto connected = here_.transport->connect(descriptor, Deadline::after(5s));
        if (connected) return std::move(*connected);
        std::fprintf(stderr, "cannot connect: %s\n", connected.error().to_string().c_str());
        std::exit(1);
    }
    Transport& transport() { return *here_.transport; }
    void call(Direction direction, size_t size, size_t count, Submit how) { call(*peer_, direction, size, count, how); }
    void call(Peer& peer, Direction direction, size_t size, size_t count, Submit how) {
        completion_.reset();
        completion_.add(static_cast<uint32_t>(count));
        slices_.clear();
        for (size_t i = 0; i < count; ++i)
            slices_.push_back({.local = here_.pool + i * size,
                               .remote = there_.pool + i * size,
                               .length = size,
                               .completion = &completion_,
                               .region = &here_.region});
        peer.submit(direction, slices_, how);
        const bool done = how == Submit::kWait ? peer.wait(completion_, Deadline::after(20s)) : completion_.wait(Deadline::after(20s));
        if (done && completion_.result()) return;
        std::fprintf(stderr, "transfer failed: %s\n", done ? completion_.result().error().to_string().c_str() : "timed out");
        std::exit(1);
    }

private:
    const Announcement there_;
    Host here_;
    std::unique_ptr<Peer> peer_;
    Completion completion_;
    std::vector<Slice> slices_;
};

// ---- measuring

struct Figures {
    double gbps = 0, p50_us = 0, p99_us = 0;
};

Figures measure(double seconds, size_t bytes, const std::function<void()>& call) {
    call();
    std::vector<double> micros;
    const Time start = Clock::now();
    for (Time before = start; before - start < std::chrono::duration<double>(seconds);) {
        call();
        const Time after = Clock::now();
        micros.push_back(std::chrono::duration<double, std::micro>(after - before).count());
        before = after;
    }
    const double elapsed = std::chrono::duration<double>(Clock::now() - start).count();
    std::sort(micros.begin(), micros.end());
    return {.gbps = static_cast<double>(bytes * micros.size()) / elapsed / 1e9,
            .p50_us = micros[micros.size() / 2],
            .p99_us = micros[micros.size() * 99 / 100]};
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

class Comparison {
public:
    Comparison(const PlainTarget& target, PlainLoop& plain, OurLoop& ours, double seconds)
        : target_(target), plain_(plain), ours_(ours), seconds_(seconds / kTurns) {}

    void run(Direction direction, size_t size, size_t count) {
        std::vector<double> ours, plain, compared, ours_p99, plain_p99;
        for (int turn = 0; turn < kTurns; ++turn) {
            target_.resume();
            const Figures theirs = measure(seconds_, size * count, [&] { plain_.call(direction, size, count); });
            target_.stop();
            const Figures mine = measure(seconds_, size * count, [&] { ours_.call(direction, size, count, Submit::kWait); });
            ours.push_back(count > 1 ? mine.gbps : mine.p50_us);
            plain.push_back(count > 1 ? theirs.gbps : theirs.p50_us);
            compared.push_back(count > 1 ? mine.gbps / theirs.gbps : mine.p50_us - theirs.p50_us);
            ours_p99.push_back(mine.p99_us);
            plain_p99.push_back(theirs.p99_us);
        }
        const char* const name = direction == Direction::kWrite ? "write" : "read";
        const double result = median(compared);
        if (count > 1)
            std::printf("%-5s %8zu x %2zu  %6.2f GB/s  plain %6.2f  ratio %.2f (>= 0.90 %s)\n", name, size, count, median(ours),
                        median(plain), result, verdict(result >= 0.9));
        else
            std::printf("%-5s %8zu single  p50 %6.1f us  plain %6.1f  more %.1f (<= 5 %s)  p99 %.1f, plain %.1f\n", name, size,
                        median(ours), median(plain), result, verdict(result <= 5), median(ours_p99), median(plain_p99));
        std::fflush(stdout);
    }
    /// How much of a core both processes need while nothing happens.
    void idle(pid_t target) {
        const double before = used_seconds(::getpid()) + used_seconds(target);
        ::usleep(2'000'000);
        const double percent = (used_seconds(::getpid()) + used_seconds(target) - before) / 2 * 100;
        std::printf("idle: %.2f %% of a core, initiator and target together (<= 1 %s)\n", percent, verdict(percent <= 1));
    }
    /// Many buffers, and many peers of which each has been used.
    void scale() {
        constexpr size_t kBuffers = 10'000, kBufferBytes = 64 << 10, kPeers = 1'000;
        void* const memory = ::mmap(nullptr, kBuffers * kBufferBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        MC_CHECK(memory != MAP_FAILED);
        std::vector<std::unique_ptr<Registration>> buffers;
        grow("buffers registered", kBuffers, 2, 32, [&] {
            for (size_t i = 0; i < kBuffers; ++i) {
                const MemoryRegion region{.address = static_cast<std::byte*>(memory) + i * kBufferBytes, .length = kBufferBytes};
                buffers.push_back(ours_.transport().register_memory(region).value());
            }
        });
        grow("buffers given back", kBuffers, 2, 32, [&] { buffers.clear(); });
        std::vector<std::unique_ptr<Peer>> peers;
        grow("peers connected and read from", kPeers, 5, 32, [&] {
            for (size_t i = 0; i < kPeers; ++i) {
                peers.push_back(ours_.connect());
                ours_.call(*peers.back(), Direction::kRead, 4096, 1, Submit::kWait);
            }
        });
        measure_among(peers);
        grow("peers left", kPeers, 2, 32, [&] { peers.clear(); });
        ::munmap(memory, kBuffers * kBufferBytes);
    }
    bool missed() const noexcept { return missed_; }

private:
    /// A transfer must not become slower because there are many peers.
    void measure_among(const std::vector<std::unique_ptr<Peer>>& peers) {
        const Figures first = measure(seconds_, 4096, [&] { ours_.call(Direction::kRead, 4096, 1, Submit::kWait); });
        size_t turn = 0;
        const Figures all = measure(seconds_, 4096,
                                    [&] { ours_.call(*peers[turn++ % peers.size()], Direction::kRead, 4096, 1, Submit::kWait); });
        std::printf("read 4096 among %zu peers: p50 %.1f us from one, %.1f in turn from all\n", peers.size(), first.p50_us, all.p50_us);
    }
    void grow(const char* what, size_t count, double seconds_max, double mebibytes_max, const std::function<void()>& body) {
        const double before = resident_mebibytes();
        const Time start = Clock::now();
        body();
        const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
        const double more = resident_mebibytes() - before;
        std::printf("%zu %s: %.3f s (<= %.0f %s), %+.1f MiB (<= %.0f %s)\n", count, what, seconds, seconds_max,
                    verdict(seconds <= seconds_max), more, mebibytes_max, verdict(more <= mebibytes_max));
        std::fflush(stdout);
    }
    static double resident_mebibytes() {
        long pages = 0, resident = 0;
        std::FILE* const file = std::fopen("/proc/self/statm", "r");
        MC_CHECK(file != nullptr && std::fscanf(file, "%ld %ld", &pages, &resident) == 2);
        std::fclose(file);
        return static_cast<double>(resident) * static_cast<double>(::sysconf(_SC_PAGESIZE)) / (1 << 20);
    }
    const char* verdict(bool good) {
        missed_ |= !good;
        return good ? "ok" : "MISSED";
    }
    static double used_seconds(pid_t process) {
        clockid_t clock{};
        timespec time{};
        MC_CHECK(::clock_getcpuclockid(process, &clock) == 0 && ::clock_gettime(clock, &time) == 0);
        return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
    }

    const PlainTarget& target_;
    PlainLoop& plain_;
    OurLoop& ours_;
    const double seconds_;
    bool missed_ = false;
};

}  // namespace
}  // namespace mooncake

int main(int argc, char** argv) {
    using namespace mooncake;
    EngineOptions options;
    options.protocol = "fabric:tcp";
    std::string node = "127.0.0.1";
    std::string only;
    double seconds = 2;
    bool check = false;
    for (int i = 1; i < argc; ++i) {
        const std::string argument = argv[i];
        const std::string value = argument.substr(argument.find('=') + 1);
        if (argument == "check") check = true;
        else if (argument.starts_with("only=")) only = value;
        else if (argument.starts_with("spin=")) options.fabric.spin = std::chrono::microseconds(std::stoi(value));
        else if (argument.starts_with("node=")) node = value;
        else seconds = std::stod(argument);
    }
    options.fabric.nodes = {node};
    if (const auto library = fabric::load_library(""); !library) {
        std::printf("nothing to measure: %s\n", library.error().to_string().c_str());
        return 0;
    }
    const PlainTarget plain_target(node);
    const OurTarget our_target(options);
    PlainLoop plain(plain_target, node);
    OurLoop ours(our_target, options);
    Comparison comparison(plain_target, plain, ours, seconds);
    constexpr std::pair<size_t, size_t> kCases[] = {{4 << 10, 1}, {64 << 10, 16}, {1 << 20, 8}};
    for (const Direction direction : {Direction::kWrite, Direction::kRead})
        for (const auto& [size, count] : kCases)
            if (only.empty() || only == format_text("{}{}", direction == Direction::kWrite ? "write" : "read", size >> 10))
                comparison.run(direction, size, count);
    comparison.idle(our_target.pid());
    if (only.empty() || only == "scale") comparison.scale();
    return check && comparison.missed() ? 1 : 0;
}
