// SPDX-License-Identifier: Apache-2.0
//
// The tcp transport between two processes, each row beside what the machine can do at best, measured right before it by the
// raw_limits program next to this one. What the constants in transport/tcp/policy.h were chosen with.
//     tcp_bench [SECONDS PER ROW] [name=value of an option: lanes, io, checksum, or of only: throughput, latency, threads, leave, sweep]...
// Only on request: sweep, how it grows with the number of threads up to that of the cores.
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "transport/tcp/tcp.h"
#include "transport/testing/local_control.h"

namespace {

using namespace mooncake;

constexpr size_t kPoolBytes = size_t{272} << 20;  // 1 MiB x 128 with gaps, and some
constexpr size_t kThreads = 4;

struct Figures {
    double gbps = 0;
    double p50_us = 0;
    double p99_us = 0;
};

/// The raw_limits program as a child.
class Limits {
public:
    explicit Limits(const std::string& program) {
        int in[2], out[2];
        MC_CHECK(::pipe(in) == 0 && ::pipe(out) == 0);
        pid_ = ::fork();
        if (pid_ == 0) {
            ::dup2(in[0], 0);
            ::dup2(out[1], 1);
            ::close(in[1]);
            ::close(out[0]);
            ::execl(program.c_str(), program.c_str(), nullptr);
            std::_Exit(1);
        }
        ::close(in[0]);
        ::close(out[1]);
        ask_ = ::fdopen(in[1], "w");
        answer_ = ::fdopen(out[0], "r");
    }
    ~Limits() {
        std::fclose(ask_);
        std::fclose(answer_);
        ::waitpid(pid_, nullptr, 0);
    }
    Figures measure(const char* name, size_t size, size_t count, double seconds) {
        std::fprintf(ask_, "%s %zu %zu %f\n", name, size, count, seconds);
        std::fflush(ask_);
        Figures figures;
        if (std::fscanf(answer_, "%lf %lf %lf", &figures.gbps, &figures.p50_us, &figures.p99_us) != 3) {
            std::fprintf(stderr, "raw_limits does not answer\n");
            std::exit(1);
        }
        return figures;
    }

private:
    pid_t pid_ = 0;
    std::FILE* ask_ = nullptr;
    std::FILE* answer_ = nullptr;
};

struct Engine {
    explicit Engine(const EngineOptions& given) : options(given) {
        pool = static_cast<std::byte*>(::mmap(nullptr, kPoolBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        std::memset(pool, 1, kPoolBytes);
        region = {.address = pool, .length = kPoolBytes};
        access.allow({.address = reinterpret_cast<uint64_t>(pool), .length = kPoolBytes});
        auto made = tcp::make_tcp_transport({.incarnation = incarnation, .options = options, .access = access, .control = control});
        MC_CHECK(made.has_value());
        transport = std::move(*made);
    }

    EngineOptions options;
    Incarnation incarnation = Incarnation::random();
    AccessTable access;
    testing::LocalControl control{incarnation};
    std::byte* pool = nullptr;
    MemoryRegion region;
    std::unique_ptr<Transport> transport;
};

struct Announcement {
    Incarnation incarnation;
    uint64_t pool = 0;
    char endpoint[32] = {};
};

/// The other process: lends its pool until it is killed.
class Target {
public:
    explicit Target(const EngineOptions& options) {
        int channel[2];
        MC_CHECK(::pipe(channel) == 0);
        pid_ = ::fork();
        if (pid_ == 0) {
            Engine engine(options);
            Announcement here{.incarnation = engine.incarnation, .pool = reinterpret_cast<uint64_t>(engine.pool)};
            std::snprintf(here.endpoint, sizeof here.endpoint, "%s", engine.transport->endpoint().c_str());
            MC_CHECK(::write(channel[1], &here, sizeof here) == sizeof here);
            for (;;) ::pause();
        }
        Announcement there;
        MC_CHECK(::read(channel[0], &there, sizeof there) == sizeof there);
        pool = there.pool;
        descriptor.name = "target";
        descriptor.host = "127.0.0.1";
        descriptor.incarnation = there.incarnation;
        descriptor.endpoints["tcp"] = there.endpoint;
    }
    ~Target() {
        ::kill(pid_, SIGKILL);
        ::waitpid(pid_, nullptr, 0);
    }

    SegmentDescriptor descriptor;
    uint64_t pool = 0;

private:
    pid_t pid_ = 0;
};

std::vector<size_t> scattered(size_t size, size_t count, unsigned seed) {
    std::vector<size_t> offsets(count);
    for (size_t i = 0; i < count; ++i) offsets[i] = 2 * i * size;
    std::shuffle(offsets.begin(), offsets.end(), std::minstd_rand(seed));
    return offsets;
}

/// One caller with its blocks.
class Caller {
public:
    /// `share`: the part of the pool, of `shares`, that is its own.
    Caller(Engine& engine, const Target& target, Peer& peer, size_t size, size_t count, size_t share, size_t shares = 1) : peer_(peer) {
        const size_t base = share * (kPoolBytes / shares / 4096 * 4096);
        const auto here = scattered(size, count, 1), there = scattered(size, count, 2);
        for (size_t i = 0; i < count; ++i)
            slices_.push_back({.local = engine.pool + base + here[i],
                               .remote = target.pool + base + there[i],
                               .length = size,
                               .completion = &completion_,
                               .region = &engine.region});
    }
    void call(Direction direction, Submit how) {
        completion_.reset();
        completion_.add(static_cast<uint32_t>(slices_.size()));
        peer_.submit(direction, slices_, how);
        const bool done = how == Submit::kWait ? peer_.wait(completion_, Deadline::after(20s)) : completion_.wait(Deadline::after(20s));
        if (done && completion_.result()) return;
        std::fprintf(stderr, "transfer failed: %s\n", done ? completion_.result().error().to_string().c_str() : "timed out");
        std::exit(1);
    }

private:
    Peer& peer_;
    Completion completion_;
    std::vector<Slice> slices_;
};

Figures summarize(std::vector<double> micros, double bytes, double elapsed) {
    std::sort(micros.begin(), micros.end());
    return {.gbps = bytes * static_cast<double>(micros.size()) / elapsed / 1e9,
            .p50_us = micros[micros.size() / 2],
            .p99_us = micros[micros.size() * 99 / 100]};
}

Figures measure(double seconds, size_t bytes, const std::function<void()>& call, std::atomic<bool>* go = nullptr) {
    call();
    if (go != nullptr) go->wait(false);
    std::vector<double> micros;
    const Time start = Clock::now();
    for (Time before = start; before - start < std::chrono::duration<double>(seconds);) {
        call();
        const Time after = Clock::now();
        micros.push_back(std::chrono::duration<double, std::micro>(after - before).count());
        before = after;
    }
    return summarize(std::move(micros), static_cast<double>(bytes), std::chrono::duration<double>(Clock::now() - start).count());
}

struct Row {
    size_t size;
    size_t count;
    double wanted;  // ratio to the socket, or of the latency
};

class Bench {
public:
    Bench(const std::string& limits, const EngineOptions& options, double seconds)
        : limits_(limits), target_(options), engine_(options), seconds_(seconds) {
        auto peer = engine_.transport->connect(target_.descriptor, Deadline::after(5s));
        MC_CHECK(peer.has_value());
        peer_ = std::move(*peer);
    }

    void throughput(const Row& row, Direction direction, Submit how) {
        Caller caller(engine_, target_, *peer_, row.size, row.count, 0);
        const Figures raw = limits_.measure("socket", 2, 1 << 20, seconds_ / 2);
        const Figures ours = measure(seconds_, row.size * row.count, [&] { caller.call(direction, how); });
        const double ratio = ours.gbps / raw.gbps;
        std::printf("%-5s %-5s %8zu x %3zu  %6.2f GB/s  raw %6.2f  ratio %.2f (>= %.2f %s)  p50 %8.1f us  p99 %8.1f us\n", name(direction),
                    how == Submit::kWait ? "wait" : "leave", row.size, row.count, ours.gbps, raw.gbps, ratio, row.wanted,
                    ratio >= row.wanted ? "ok" : "MISSED", ours.p50_us, ours.p99_us);
        std::fflush(stdout);
    }

    void latency(size_t size, Direction direction, Submit how) {
        Caller caller(engine_, target_, *peer_, size, 1, 0);
        const Figures raw = limits_.measure("pingpong", 64, 1, seconds_ / 2);
        const Figures ours = measure(seconds_, size, [&] { caller.call(direction, how); });
        const double ratio = ours.p50_us / raw.p50_us, tail = ours.p99_us / ours.p50_us;
        std::printf("%-5s %-5s %8zu single p50 %6.1f us  raw %6.1f  ratio %.2f (<= 2 %s)  p99 %6.1f us, %.1f x p50 (<= 5 %s)\n",
                    name(direction), how == Submit::kWait ? "wait" : "leave", size, ours.p50_us, raw.p50_us, ratio,
                    ratio <= 2 ? "ok" : "MISSED", ours.p99_us, tail, tail <= 5 ? "ok" : "MISSED");
        std::fflush(stdout);
    }

    void threads(size_t size, size_t count, Direction direction, size_t number = kThreads) {
        std::vector<std::unique_ptr<Caller>> callers;
        for (size_t i = 0; i < number; ++i) callers.push_back(std::make_unique<Caller>(engine_, target_, *peer_, size, count, i, number));
        // One after the other, so that the caches hold as much for one thread as for all.
        size_t turn = 0;
        const Figures one = measure(seconds_, size * count, [&] { callers[turn++ % number]->call(direction, Submit::kWait); });
        std::vector<Figures> each(number);
        std::atomic<bool> go{false};
        {
            std::vector<std::jthread> running;
            for (size_t i = 0; i < number; ++i)
                running.emplace_back([&, i] {
                    each[i] = measure(
                        seconds_, size * count, [&] { callers[i]->call(direction, Submit::kWait); }, &go);
                });
            go = true;
            go.notify_all();
        }
        double together = 0, worst = 0;
        for (const Figures& figures : each) {
            together += figures.gbps;
            worst = std::max(worst, figures.p99_us);
        }
        std::printf("%-5s %zu threads %7zu x %3zu  %6.2f GB/s  one alone %6.2f  ratio %.2f (>= 1.00 %s)  p50 %.1f us, worst p99 %.1f us\n",
                    name(direction), number, size, count, together, one.gbps, together / one.gbps, together >= one.gbps ? "ok" : "MISSED",
                    each[0].p50_us, worst);
        std::fflush(stdout);
    }

    void idle() {
        rusage before{}, after{};
        ::getrusage(RUSAGE_SELF, &before);
        ::usleep(1'000'000);
        ::getrusage(RUSAGE_SELF, &after);
        const auto micros = [](const timeval& t) { return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_usec); };
        std::printf("idle: %.2f %% of a core\n",
                    (micros(after.ru_utime) + micros(after.ru_stime) - micros(before.ru_utime) - micros(before.ru_stime)) / 1e4);
    }

private:
    static const char* name(Direction direction) { return direction == Direction::kWrite ? "write" : "read"; }

    Limits limits_;
    Target target_;
    Engine engine_;
    double seconds_;
    std::unique_ptr<Peer> peer_;
};

}  // namespace

int main(int argc, char** argv) {
    EngineOptions options;
    double seconds = 1;
    std::string only;
    for (int i = 1; i < argc; ++i) {
        const std::string argument = argv[i];
        const std::string value = argument.substr(argument.find('=') + 1);
        if (argument.starts_with("lanes=")) options.tcp_lanes = std::stoi(value);
        else if (argument.starts_with("io=")) options.tcp_io_threads = std::stoi(value);
        else if (argument.starts_with("checksum=")) options.tcp_checksum = value == "1";
        else if (argument.starts_with("only=")) only = value;
        else seconds = std::stod(argument);
    }
    const std::string here = argv[0];
    Bench bench(here.substr(0, here.find_last_of('/') + 1) + "raw_limits", options, seconds);
    const auto wanted = [&](const char* part) { return only.empty() || only == part; };
    for (const Row& row : {Row{64 << 20, 1, 0.9}, Row{1 << 20, 128, 0.9}, Row{64 << 10, 128, 0.7}, Row{4 << 10, 128, 0.35}})
        for (const Direction direction : {Direction::kWrite, Direction::kRead})
            if (wanted("throughput")) bench.throughput(row, direction, Submit::kWait);
    for (const size_t size : {size_t{64}, size_t{4096}})
        for (const Direction direction : {Direction::kWrite, Direction::kRead})
            if (wanted("latency")) bench.latency(size, direction, Submit::kWait);
    if (wanted("threads")) {
        bench.threads(1 << 20, 16, Direction::kWrite);
        bench.threads(64 << 10, 128, Direction::kWrite);
        bench.threads(64 << 10, 128, Direction::kRead);
        bench.threads(4 << 10, 128, Direction::kWrite);
        bench.threads(4 << 10, 128, Direction::kRead);
        bench.threads(4 << 10, 1, Direction::kWrite);
        bench.threads(4 << 10, 1, Direction::kRead);
    }
    if (only == "sweep") {
        for (const Row& row : {Row{1 << 20, 8, 1}, Row{64 << 10, 128, 1}, Row{4 << 10, 128, 1}, Row{4 << 10, 1, 1}})
            for (const Direction direction : {Direction::kWrite, Direction::kRead})
                for (size_t number = 1; number <= std::clamp<size_t>(std::thread::hardware_concurrency(), 4, 16); number *= 2)
                    bench.threads(row.size, row.count, direction, number);
    }
    if (wanted("leave")) {
        bench.throughput({1 << 20, 128, 0.8}, Direction::kWrite, Submit::kLeave);
        bench.throughput({1 << 20, 128, 0.8}, Direction::kRead, Submit::kLeave);
        bench.throughput({4 << 10, 128, 0.2}, Direction::kWrite, Submit::kLeave);
        bench.latency(4096, Direction::kWrite, Submit::kLeave);
    }
    bench.idle();
    return 0;
}
