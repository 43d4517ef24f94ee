// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <optional>
#include <vector>

#include "base/thread.h"
#include "base/thread_annotations.h"
#include "bench.h"
#include "buffer.h"
#include "report.h"

namespace mooncake::bench {

namespace {

/// What the workers share. Thread-safe.
class Run {
public:
    explicit Run(Time end) noexcept : end_(end) {}

    void count(uint64_t bytes) noexcept { bytes_.fetch_add(bytes, std::memory_order_relaxed); }
    uint64_t bytes() const noexcept { return bytes_.load(std::memory_order_relaxed); }
    bool over(Time now) const noexcept { return now >= end_ || failed_.load(std::memory_order_relaxed); }
    Time end() const noexcept { return end_; }

    void fail_with(Error error) {
        Lock lock(mutex_);
        if (!error_) error_ = std::move(error);
        failed_.store(true, std::memory_order_relaxed);
        changed_.notify_all();
    }
    std::optional<Error> error() {
        Lock lock(mutex_);
        return error_;
    }
    /// Returns at `time`, or earlier when a worker failed.
    void wait_until(Time time) MC_THREAD_ATTRIBUTE(no_thread_safety_analysis) {
        std::unique_lock lock(mutex_);
        changed_.wait_until(lock, time, [this] { return failed_.load(std::memory_order_relaxed); });
    }

private:
    const Time end_;
    std::atomic<uint64_t> bytes_{0};
    std::atomic<bool> failed_{false};
    Mutex mutex_;
    std::condition_variable_any changed_;
    std::optional<Error> error_ MC_GUARDED_BY(mutex_);
};

struct Worker {
    std::vector<Block> blocks;
    uint64_t batches = 0;
    Latencies latencies;
    std::jthread thread;  // last, so that it ends before what it uses
};

void work(Engine& engine, const Options& options, Worker& worker, Run& run) {
    const uint64_t batch_bytes = options.block_bytes * options.blocks_per_batch;
    Time before = Clock::now();
    while (!run.over(before)) {
        auto moved = engine.transfer(options.segment, options.direction, worker.blocks, engine.transfer_deadline(batch_bytes));
        const Time after = Clock::now();
        if (!moved) return run.fail_with(std::move(moved).error());
        worker.latencies.add(static_cast<uint64_t>(std::chrono::nanoseconds(after - before).count()));
        ++worker.batches;
        run.count(batch_bytes);
        before = after;
    }
}

/// Each worker has a stretch of its own in both buffers.
std::vector<Block> blocks_of(const Options& options, std::byte* local, uint64_t remote, uint32_t worker) {
    std::vector<Block> blocks;
    blocks.reserve(options.blocks_per_batch);
    for (uint64_t i = 0; i < options.blocks_per_batch; ++i) {
        const uint64_t offset = (uint64_t{worker} * options.blocks_per_batch + i) * options.block_bytes;
        blocks.push_back({local + offset, remote + offset, options.block_bytes});
    }
    return blocks;
}

Result<uint64_t> remote_buffer(Engine& engine, const Options& options, uint64_t bytes_needed) {
    MC_ASSIGN_OR_RETURN(const auto target, engine.describe(options.segment, 1, engine.transfer_deadline(0)));
    if (target.buffers.empty()) return fail(Code::kNotFound, "{} lends no memory", options.segment);
    const BufferRecord& buffer = target.buffers.front();
    if (buffer.length < bytes_needed)
        return fail(Code::kNoSpace, "{} lends {} bytes, {} are needed: choose smaller blocks, batches or fewer threads", options.segment,
                    buffer.length, bytes_needed);
    return buffer.address;
}

void show_progress(const Options& options, Run& run) {
    const double unit = unit_bytes(options.unit).value_or(1);
    uint64_t before = 0;
    int second = 0;
    for (Time next = Clock::now() + 1s; !run.over(Clock::now()); next += 1s) {
        run.wait_until(std::min(next, run.end()));
        const uint64_t bytes = run.bytes();
        std::fprintf(stderr, "\r%4d s  %.*f %s/s   ", ++second, options.precision, static_cast<double>(bytes - before) / unit,
                     options.unit.c_str());
        std::fflush(stderr);
        before = bytes;
    }
    std::fputc('\n', stderr);
}

}  // namespace

Result<> run_initiator(const Options& options) {
    const uint64_t bytes_needed = uint64_t{options.threads} * options.blocks_per_batch * options.block_bytes;
    if (bytes_needed > options.buffer_bytes)
        return fail(Code::kInvalidArgument, "{} threads with {} blocks of {} bytes need {} bytes, the buffer has {}", options.threads,
                    options.blocks_per_batch, options.block_bytes, bytes_needed, options.buffer_bytes);
    MC_ASSIGN_OR_RETURN(const auto engine, Engine::create(options.engine));
    MC_ASSIGN_OR_RETURN(const Buffer buffer, Buffer::create(*engine, options.buffer_bytes, options.managed_memory));
    MC_ASSIGN_OR_RETURN(const uint64_t remote, remote_buffer(*engine, options, bytes_needed));

    const Time start = Clock::now();
    Run run(start + options.duration);
    std::vector<Worker> workers(options.threads);
    for (uint32_t i = 0; i < options.threads; ++i) {
        Worker& worker = workers[i];
        worker.blocks = blocks_of(options, buffer.data(), remote, i);
        worker.thread = start_thread(format_text("bench-{}", i), [&] { work(*engine, options, worker, run); });
    }
    show_progress(options, run);
    Outcome outcome;
    for (Worker& worker : workers) {
        worker.thread.join();
        outcome.batches += worker.batches;
        outcome.latencies_ns.insert(outcome.latencies_ns.end(), worker.latencies.samples().begin(), worker.latencies.samples().end());
    }
    if (auto error = run.error()) return Unexpected(std::move(*error));
    outcome.bytes = run.bytes();
    outcome.seconds = std::chrono::duration<double>(Clock::now() - start).count();
    std::fputs(report(options, std::move(outcome)).c_str(), stdout);
    return {};
}

}  // namespace mooncake::bench
