// SPDX-License-Identifier: Apache-2.0
// The fabric transport against a plain loop over libfabric, in the same run: both between two processes, over the tcp profile and
// loopback. The plain target only polls; so does the transport's thread there while it is told to spin.
//     fabric_bench [seconds] [spin=us] [node=address]
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "transport/fabric/fabric.h"
#include "transport/fabric/profile.h"
#include "transport/testing/socket_control.h"

namespace mooncake {
namespace {

constexpr uint64_t kPool = 64 << 20;

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

/// A second process that does `body` until it is killed.
class Child {
public:
    explicit Child(const std::function<void()>& body) : pid_(::fork()) {
        if (pid_ != 0) return;
        body();
        ::_exit(0);
    }
    ~Child() {
        ::kill(pid_, SIGKILL);
        ::waitpid(pid_, nullptr, 0);
    }
    Child(const Child&) = delete;
    Child& operator=(const Child&) = delete;

private:
    const pid_t pid_;
};

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

class PlainLoop {
public:
    explicit PlainLoop(const std::string& node) : child_([&] { serve(node); }), here_(node), there_(receive(pair_.ours)) {
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

class OurLoop {
public:
    OurLoop(const EngineOptions& options, Duration target_spin)
        : child_([&] { serve(options, target_spin); }), there_(receive(pair_.ours)), here_(options, pair_.ours) {
        SegmentDescriptor descriptor{.name = "target", .incarnation = there_.incarnation};
        descriptor.endpoints["fabric"] = std::string(there_.bytes, there_.length);
        auto connected = here_.transport->connect(descriptor, Deadline::after(5s));
        if (!connected) {
            std::fprintf(stderr, "cannot connect: %s\n", connected.error().to_string().c_str());
            std::exit(1);
        }
        peer_ = std::move(*connected);
    }
    void call(Direction direction, size_t size, size_t count, Submit how) {
        completion_.reset();
        completion_.add(static_cast<uint32_t>(count));
        slices_.clear();
        for (size_t i = 0; i < count; ++i)
            slices_.push_back({.local = here_.pool + i * size,
                               .remote = there_.pool + i * size,
                               .length = size,
                               .completion = &completion_,
                               .region = &here_.region});
        peer_->submit(direction, slices_, how);
        const bool done = how == Submit::kWait ? peer_->wait(completion_, Deadline::after(20s)) : completion_.wait(Deadline::after(20s));
        if (done && completion_.result()) return;
        std::fprintf(stderr, "transfer failed: %s\n", done ? completion_.result().error().to_string().c_str() : "timed out");
        std::exit(1);
    }

private:
    void serve(EngineOptions options, Duration spin) const {
        options.fabric.spin = spin;
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

void idle() {
    rusage before{}, after{};
    ::getrusage(RUSAGE_SELF, &before);
    ::usleep(1'000'000);
    ::getrusage(RUSAGE_SELF, &after);
    const auto micros = [](const timeval& t) { return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_usec); };
    const double used = micros(after.ru_utime) + micros(after.ru_stime) - micros(before.ru_utime) - micros(before.ru_stime);
    std::printf("idle: %.2f %% of a core (<= 2 %s)\n", used / 1e4, used / 1e4 <= 2 ? "ok" : "MISSED");
}

}  // namespace
}  // namespace mooncake

int main(int argc, char** argv) {
    using namespace mooncake;
    EngineOptions options;
    options.protocol = "fabric:tcp";
    std::string node = "127.0.0.1";
    double seconds = 1;
    Duration spin = 1ms;
    for (int i = 1; i < argc; ++i) {
        const std::string argument = argv[i];
        const std::string value = argument.substr(argument.find('=') + 1);
        if (argument.starts_with("spin=")) spin = std::chrono::microseconds(std::stoi(value));
        else if (argument.starts_with("node=")) node = value;
        else seconds = std::stod(argument);
    }
    options.fabric.nodes = {node};
    const auto run = [&](Direction direction, size_t size, size_t count) {
        Figures plain, ours;
        {
            PlainLoop loop(node);
            plain = measure(seconds, size * count, [&] { loop.call(direction, size, count); });
        }
        {
            OurLoop loop(options, spin);
            ours = measure(seconds, size * count, [&] { loop.call(direction, size, count, Submit::kWait); });
        }
        const char* const name = direction == Direction::kWrite ? "write" : "read";
        if (count > 1) {
            const double ratio = ours.gbps / plain.gbps;
            std::printf("%-5s %8zu x %2zu  %6.2f GB/s  plain %6.2f  ratio %.2f (>= 0.90 %s)\n", name, size, count, ours.gbps, plain.gbps,
                        ratio, ratio >= 0.9 ? "ok" : "MISSED");
        } else {
            const double more = ours.p50_us - plain.p50_us;
            std::printf("%-5s %8zu single  p50 %6.1f us  plain %6.1f  more %.1f (<= 5 %s)  p99 %.1f, plain %.1f\n", name, size, ours.p50_us,
                        plain.p50_us, more, more <= 5 ? "ok" : "MISSED", ours.p99_us, plain.p99_us);
        }
        std::fflush(stdout);
    };
    for (const Direction direction : {Direction::kWrite, Direction::kRead}) {
        run(direction, 4 << 10, 1);
        run(direction, 64 << 10, 16);
        run(direction, 1 << 20, 8);
    }
    OurLoop quiet(options, spin);
    quiet.call(Direction::kWrite, 4096, 1, Submit::kWait);
    idle();
    return 0;
}
