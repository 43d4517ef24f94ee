// SPDX-License-Identifier: Apache-2.0
// What threads that transfer at the same time take from each other: 1 to N threads of one engine write (or read) 4 KiB x 128 at a time,
// scattered as a paged KV cache is, to another process of this host. Beside it what the same threads reach with bare copies of the same blocks
// (memcpy, or process_vm_*), so that what caches and memory do shows in both columns, and what the engine does in one. Each thread has
// blocks of its own. Together they should never be slower than fewer of them.
// With fewer blocks at a time, what a transfer costs besides them shows.
//     threads_bench [SECONDS_PER_ROW] [THREADS_MAX] [BLOCKS, at most 128]
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "child.h"
#include "engine/engine.h"

namespace mooncake {
namespace {

constexpr uint64_t kBlock = 4096, kBlocks = 128, kRoom = 2 * kBlock * kBlocks;  // of one thread: none beside another
uint64_t blocks_at_a_time = kBlocks;
constexpr size_t kThreadsLimit = 64;
constexpr uint64_t kArea = kRoom * kThreadsLimit;

struct Hello {
    char name[64];
    uint64_t own, foreign;  // allocated by the engine, and by the program
};

std::byte* touched_memory() {
    void* const memory = ::mmap(nullptr, kArea, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    std::memset(memory, 1, kArea);
    return static_cast<std::byte*>(memory);
}

std::unique_ptr<Engine> make_engine() {
    EngineOptions options;
    options.transports = {"shm"};
    return Engine::create({.local_name = "127.0.0.1", .options = options}).value();
}

void run_target(int out) {
    const auto engine = make_engine();
    Hello hello{};
    std::snprintf(hello.name, sizeof hello.name, "%s", engine->segment_name().c_str());
    void* const own = engine->allocate_memory(kArea).value();
    std::memset(own, 1, kArea);
    std::byte* const foreign = touched_memory();
    if (!engine->register_memory(foreign, kArea)) std::abort();
    hello.own = reinterpret_cast<uint64_t>(own);
    hello.foreign = reinterpret_cast<uint64_t>(foreign);
    if (::write(out, &hello, sizeof hello) != sizeof hello) std::abort();
    ::pause();
}

std::vector<Block> scattered(std::byte* local, uint64_t remote, size_t thread) {
    std::vector<uint64_t> here(kBlocks), there(kBlocks);
    std::iota(here.begin(), here.end(), 0);
    there = here;
    std::mt19937_64 random(thread);
    std::shuffle(here.begin(), here.end(), random);
    std::shuffle(there.begin(), there.end(), random);
    std::vector<Block> blocks;
    for (size_t i = 0; i < kBlocks; ++i)
        blocks.push_back({local + thread * kRoom + 2 * kBlock * here[i], remote + thread * kRoom + 2 * kBlock * there[i], kBlock});
    blocks.resize(blocks_at_a_time);
    return blocks;
}

struct Row {
    double gigabytes_per_second = 0, p50_us = 0, p99_us = 0;
};

/// `call(thread)` again and again on so many threads.
Row measure(size_t threads, double seconds, const std::function<void(size_t)>& call) {
    std::vector<std::vector<double>> took(threads);
    std::vector<double> elapsed(threads);
    std::barrier together(static_cast<ptrdiff_t>(threads));
    const auto work = [&](size_t thread) {
        call(thread);
        together.arrive_and_wait();
        const Time begin = Clock::now(), end = begin + std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
        Time before = begin;
        while (before < end) {
            call(thread);
            const Time after = Clock::now();
            took[thread].push_back(std::chrono::duration<double>(after - before).count());
            before = after;
        }
        elapsed[thread] = std::chrono::duration<double>(before - begin).count();
    };
    {
        std::vector<std::jthread> running;
        for (size_t thread = 0; thread < threads; ++thread) running.emplace_back(work, thread);
    }
    Row row;
    std::vector<double> all;
    for (size_t thread = 0; thread < threads; ++thread) {
        row.gigabytes_per_second += static_cast<double>(took[thread].size() * kBlock * blocks_at_a_time) / elapsed[thread] / 1e9;
        all.insert(all.end(), took[thread].begin(), took[thread].end());
    }
    std::sort(all.begin(), all.end());
    row.p50_us = all[all.size() / 2] * 1e6;
    row.p99_us = all[all.size() * 99 / 100] * 1e6;
    return row;
}

struct Bench {
    Engine& engine;
    pid_t target;
    const Hello& hello;
    std::byte* local;       // registered
    std::byte* other_area;  // for bare copies of memory that is mapped
    double seconds;

    void bare(bool own, Direction direction, std::span<const Block> blocks) const {
        if (own) {
            for (const Block& block : blocks) {
                std::byte* const there = other_area + (block.remote - hello.own);
                if (direction == Direction::kRead) std::memcpy(block.local, there, block.length);
                else std::memcpy(there, block.local, block.length);
            }
            return;
        }
        iovec here[kBlocks], there[kBlocks];
        for (size_t i = 0; i < blocks.size(); ++i) {
            here[i] = {blocks[i].local, blocks[i].length};
            there[i] = {reinterpret_cast<void*>(blocks[i].remote), blocks[i].length};
        }
        const auto call = direction == Direction::kRead ? ::process_vm_readv : ::process_vm_writev;
        if (call(target, here, blocks.size(), there, blocks.size(), 0) != static_cast<ssize_t>(kBlock * blocks.size())) std::abort();
    }

    void run(bool own, Direction direction, size_t threads) const {
        std::vector<std::vector<Block>> blocks;
        for (size_t thread = 0; thread < threads; ++thread) blocks.push_back(scattered(local, own ? hello.own : hello.foreign, thread));
        const std::string name = hello.name;
        const Row ours = measure(threads, seconds, [&](size_t thread) {
            auto moved = engine.transfer(name, direction, blocks[thread], engine.transfer_deadline(kBlock * kBlocks));
            if (moved) return;
            std::fprintf(stderr, "%s\n", moved.error().to_string().c_str());
            std::abort();
        });
        const Row limit = measure(threads, seconds, [&](size_t thread) { bare(own, direction, blocks[thread]); });
        std::printf(
            "%-7s %-5s %2zu threads, 4 KiB x %3zu, shm  ours %7.2f GB/s p50 %8.1f p99 %8.1f us   bare %7.2f GB/s p50 %8.1f us   ratio "
            "%.2f\n",
            own ? "own" : "foreign", direction == Direction::kRead ? "read" : "write", threads, blocks_at_a_time, ours.gigabytes_per_second,
            ours.p50_us, ours.p99_us, limit.gigabytes_per_second, limit.p50_us, ours.gigabytes_per_second / limit.gigabytes_per_second);
        std::fflush(stdout);
    }
};

int run_initiator(int in, pid_t target, double seconds, size_t threads_max) {
    Hello hello{};
    if (::read(in, &hello, sizeof hello) != sizeof hello) return 1;
    const auto engine = make_engine();
    std::byte* const local = touched_memory();
    if (!engine->register_memory(local, kArea)) return 1;
    const Bench bench{
        .engine = *engine, .target = target, .hello = hello, .local = local, .other_area = touched_memory(), .seconds = seconds};
    // Until the target's memory is mapped here, and its pages are entered.
    const std::vector<Block> everything = {{local, hello.own, kArea}};
    for (int i = 0; i < 50; ++i)
        if (!engine->transfer(hello.name, Direction::kWrite, everything, engine->transfer_deadline(kArea))) return 1;
    for (const bool own : {true, false})
        for (const Direction direction : {Direction::kWrite, Direction::kRead})
            for (size_t threads = 1; threads <= threads_max; threads *= 2) bench.run(own, direction, threads);
    return 0;
}

}  // namespace
}  // namespace mooncake

int main(int argc, char** argv) {
    int from_target[2];
    if (::pipe(from_target) != 0) return 1;
    const Child target([&] { mooncake::run_target(from_target[1]); });
    if (argc > 3) mooncake::blocks_at_a_time = std::clamp<uint64_t>(static_cast<uint64_t>(std::atoi(argv[3])), 1, mooncake::kBlocks);
    const size_t threads_max = argc > 2 ? static_cast<size_t>(std::atoi(argv[2])) : 16;
    return mooncake::run_initiator(from_target[0], target.pid(), argc > 1 ? std::atof(argv[1]) : 1.0,
                                   std::min(threads_max, mooncake::kThreadsLimit));
}
