// SPDX-License-Identifier: Apache-2.0
// How close the shared-memory transport comes to what the machine can do: memcpy for memory the engine allocated, the kernel's
// cross-memory calls for all other. Two processes; ours and the bare call take turns on the same kind of memory, sizes and scatter.
//     shm_bench [SECONDS_PER_CASE]
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "base/shared_memory.h"
#include "transport/shm/shm.h"
#include "transport/testing/local_control.h"

namespace mooncake {
namespace {

constexpr uint64_t kArea = 256 << 20;

struct Host {
    Incarnation incarnation = Incarnation::random();
    EngineOptions options;
    AccessTable access;
    testing::LocalControl control{incarnation};
    std::unique_ptr<Transport> transport =
        make_shm_transport({.incarnation = incarnation, .options = options, .access = access, .control = control}).value();
};

std::byte* touched_memory() {
    void* const memory = ::mmap(nullptr, kArea, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    std::memset(memory, 1, kArea);
    return static_cast<std::byte*>(memory);
}

/// What the target tells the initiator.
struct Hello {
    uint64_t incarnation, foreign, own;
    int own_fd;
    char endpoint[128];
};

[[noreturn]] void run_target(int out, int in) {
    Host host;
    std::byte* const foreign = touched_memory();
    const SharedMemory own = allocate_shared_memory(kArea).value();
    std::memset(own.address(), 1, kArea);
    const MemoryRegion regions[] = {{.address = foreign, .length = kArea},
                                    {.address = own.address(), .length = kArea, .shared_fd = own.fd()}};
    const auto first = host.transport->register_memory(regions[0]), second = host.transport->register_memory(regions[1]);
    Hello hello{.incarnation = host.incarnation.value,
                .foreign = reinterpret_cast<uint64_t>(foreign),
                .own = reinterpret_cast<uint64_t>(own.address()),
                .own_fd = own.fd(),
                .endpoint = {}};
    std::snprintf(hello.endpoint, sizeof hello.endpoint, "%s", host.transport->endpoint().c_str());
    if (::write(out, &hello, sizeof hello) != sizeof hello) std::abort();
    char end = 0;
    (void)!::read(in, &end, 1);  // until the initiator is gone
    ::_exit(0);
}

struct Timing {
    std::vector<double> seconds;
    double at(double quantile) {
        std::sort(seconds.begin(), seconds.end());
        return seconds[static_cast<size_t>(quantile * static_cast<double>(seconds.size() - 1))];
    }
    double total() const {
        double sum = 0;
        for (const double one : seconds) sum += one;
        return sum;
    }
};

struct Bench {
    Peer& peer;
    pid_t target;
    uint64_t foreign, own;
    std::byte* local;
    const MemoryRegion* region;
    std::byte* reference_shared;  // the same memory as `own`, mapped once more
    double seconds;
    std::mt19937_64 random{1};

    std::vector<Slice> scatter(uint64_t base, uint64_t length, size_t count) {
        std::vector<Slice> slices(count);
        for (Slice& slice : slices) {
            const auto place = [&] { return random() % (kArea / length) * length; };
            slice = {.local = local + place(), .remote = base + place(), .length = length, .region = region};
        }
        return slices;
    }

    void ours(Direction direction, std::vector<Slice>& slices) {
        Completion completion;
        completion.add(static_cast<uint32_t>(slices.size()));
        for (Slice& slice : slices) slice.completion = &completion;
        peer.submit(direction, slices, Submit::kWait);
        if (!peer.wait(completion, Deadline::never()) || !completion.result()) {
            std::fprintf(stderr, "%s\n", completion.result().error().to_string().c_str());
            std::abort();
        }
    }
    void by_kernel(Direction direction, const std::vector<Slice>& slices) {
        static std::vector<iovec> here, there;
        here.clear();
        there.clear();
        uint64_t bytes = 0;
        for (const Slice& slice : slices) {
            here.push_back({slice.local, slice.length});
            there.push_back({reinterpret_cast<void*>(slice.remote), slice.length});
            bytes += slice.length;
        }
        const auto call = direction == Direction::kRead ? ::process_vm_readv : ::process_vm_writev;
        if (call(target, here.data(), here.size(), there.data(), there.size(), 0) != static_cast<ssize_t>(bytes)) std::abort();
    }
    void by_memcpy(Direction direction, const std::vector<Slice>& slices) {
        for (const Slice& slice : slices) {
            std::byte* const shared = reference_shared + (slice.remote - own);
            if (direction == Direction::kRead) std::memcpy(slice.local, shared, slice.length);
            else std::memcpy(shared, slice.local, slice.length);
        }
    }

    void run(const char* what, bool mapped, Direction direction, uint64_t length, size_t count, double target_ratio) {
        Timing us, bare;
        const uint64_t base = mapped ? own : foreign;
        const Time end = Clock::now() + std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
        const auto time = [](Timing& timing, const std::function<void()>& call) {
            const Time begin = Clock::now();
            call();
            timing.seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
        };
        while (Clock::now() < end || us.seconds.size() < 20) {
            auto slices = scatter(base, length, count);
            time(us, [&] { ours(direction, slices); });
            slices = scatter(base, length, count);
            time(bare, [&] { mapped ? by_memcpy(direction, slices) : by_kernel(direction, slices); });
        }
        const double bytes = static_cast<double>(length * count);
        const double ratio = bare.total() / static_cast<double>(bare.seconds.size()) /
                             (us.total() / static_cast<double>(us.seconds.size()));
        std::printf(
            "%-8s %-5s %4zu x %9lu B  ours %6.2f GB/s p50 %8.2f p99 %8.2f us   bare %6.2f GB/s p50 %8.2f p99 %8.2f us   mean ratio %.2f "
            "p50 ratio %.2f %s%s\n",
            what, direction == Direction::kRead ? "read" : "write", count, static_cast<unsigned long>(length), bytes / us.at(0.5) / 1e9,
            us.at(0.5) * 1e6, us.at(0.99) * 1e6, bytes / bare.at(0.5) / 1e9, bare.at(0.5) * 1e6, bare.at(0.99) * 1e6, ratio,
            bare.at(0.5) / us.at(0.5), bare.at(0.5) / us.at(0.5) >= target_ratio ? "ok" : "BELOW TARGET",
            us.at(0.99) > 5 * us.at(0.5) ? " TAIL" : "");
    }
};

int run_initiator(int in, pid_t target, double seconds) {
    Hello hello;
    if (::read(in, &hello, sizeof hello) != sizeof hello) return 1;
    Host host;
    std::byte* const local = touched_memory();
    const MemoryRegion region{.address = local, .length = kArea};
    const std::string path = format_text("/proc/{}/fd/{}", target, hello.own_fd);
    const Mapping reference = MemoryFile(::open(path.c_str(), O_RDWR | O_CLOEXEC)).map(true, kArea).value();
    std::memset(reference.address(), 1, kArea);
    const SegmentDescriptor descriptor{
        .name = "target", .incarnation = {hello.incarnation}, .boot_id = boot_id(), .endpoints = {{"shm", hello.endpoint}}};
    const auto peer = host.transport->connect(descriptor, Deadline::after(10s)).value();

    Bench bench{.peer = *peer,
                .target = target,
                .foreign = hello.foreign,
                .own = hello.own,
                .local = local,
                .region = &region,
                .reference_shared = reference.address(),
                .seconds = seconds};
    auto everything = std::vector<Slice>{{.local = local, .remote = hello.own, .length = kArea, .region = &region}};
    for (int i = 0; i < 4; ++i) bench.ours(Direction::kWrite, everything);  // until the memory is mapped and its pages are there

    for (const Direction direction : {Direction::kRead, Direction::kWrite}) {
        bench.run("own", true, direction, 4096, 1, 0);
        for (const uint64_t length : {64 << 10, 256 << 10, 1 << 20, 4 << 20, 64 << 20}) bench.run("own", true, direction, length, 1, 0.8);
        bench.run("own", true, direction, 64 << 10, 64, 0.8);
        bench.run("own", true, direction, 4096, 128, 0);
        bench.run("foreign", false, direction, 4096, 1, 0);
        for (const uint64_t length : {64 << 10, 256 << 10, 1 << 20, 4 << 20, 64 << 20})
            bench.run("foreign", false, direction, length, 1, 0.9);
        bench.run("foreign", false, direction, 4096, 128, 0.9);
        bench.run("foreign", false, direction, 64 << 10, 64, 0.9);
    }
    return 0;
}

}  // namespace
}  // namespace mooncake

int main(int argc, char** argv) {
    int from_target[2], to_target[2];
    if (::pipe(from_target) != 0 || ::pipe(to_target) != 0) return 1;
    const pid_t target = ::fork();
    if (target == 0) {
        ::close(to_target[1]);
        mooncake::run_target(from_target[1], to_target[0]);
    }
    const int result = mooncake::run_initiator(from_target[0], target, argc > 1 ? std::atof(argv[1]) : 0.5);
    ::close(to_target[1]);
    ::waitpid(target, nullptr, 0);
    return result;
}
