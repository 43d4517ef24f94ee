// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "base/completion.h"
#include "base/thread_annotations.h"
#include "base/timer_queue.h"
#include "store/tier/arena.h"
#include "store/tier/index.h"
#include "store/tier/storage_tier.h"

namespace mooncake::store::log {

/// Reads values: cuts them into pieces, reads these into its own buffers, verifies, copies (docs/ssd.md, "Reading"). Thread-safe.
class Reader {
public:
    struct Options {
        size_t small_buffers = 128, large_buffers = 32;
        size_t reads_max = 16384;  // that wait or run
    };
    /// A value was not what it should be. On a thread of the disk: must not block.
    using OnCorrupt = std::function<void(std::string_view tenant, std::string_view key, uint64_t generation)>;

    static constexpr uint64_t kPieceBytes = 1 << 20;  // of a value

    Reader(const Index& index, TimerQueue& clock, Options options, OnCorrupt on_corrupt);
    ~Reader();
    Result<> start();

    void read(std::span<TierRead> objects, Deadline deadline, Completion& completion);
    /// Ends what waits, and waits for what the disk has. Idempotent.
    void close();
    /// Reads wait for buffers: others had better stay away from the disk.
    bool is_pressed() const noexcept { return pressed_.load(std::memory_order_relaxed); }

    std::atomic<uint64_t> read_bytes{0}, errors{0}, corrupt{0}, timed_out{0};

private:
    enum Kind : size_t { kSmall, kLarge, kDirect, kKinds };  // of what a piece needs
    struct Piece;
    class Task;
    using TaskPtr = std::shared_ptr<Task>;

    /// An error for a read that never begins.
    static void refuse(TierRead& object, Completion& completion, Error error);
    /// Whether there is anything to read; otherwise it was answered.
    bool begin(TierRead& object, Deadline deadline, Completion& completion);
    void enqueue(TaskPtr task, bool first_time);
    /// Hands pieces to the disk while there are buffers. One thread at a time; who finds it at work leaves it to that.
    void pump();
    /// The next piece of whoever waits, with what it needs; null: nobody, or nothing is left.
    std::unique_ptr<Piece> next_piece() MC_REQUIRES(mutex_);
    void release(Piece& piece);
    void task_ended();

    const Index& index_;
    TimerQueue& clock_;
    const Options options_;
    const OnCorrupt on_corrupt_;

    Mutex mutex_;
    std::condition_variable_any changed_;
    std::array<std::deque<TaskPtr>, kKinds> waiting_ MC_GUARDED_BY(mutex_);
    BufferPool small_ MC_GUARDED_BY(mutex_), large_ MC_GUARDED_BY(mutex_);
    size_t direct_free_ MC_GUARDED_BY(mutex_) = 32;
    size_t tasks_ MC_GUARDED_BY(mutex_) = 0;   // not answered yet
    size_t pieces_ MC_GUARDED_BY(mutex_) = 0;  // with the disk
    bool pumping_ MC_GUARDED_BY(mutex_) = false;
    bool again_ MC_GUARDED_BY(mutex_) = false;
    bool closed_ MC_GUARDED_BY(mutex_) = false;
    std::atomic<bool> pressed_{false};
};

}  // namespace mooncake::store::log
