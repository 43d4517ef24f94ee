// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "base/time.h"

namespace mooncake {

class Completion;

/// Told once, by the thread that finished the last operation. Must not block.
class MC_EXPORT CompletionHook {
public:
    virtual void on_done(Completion& completion) noexcept = 0;

protected:
    ~CompletionHook() = default;
};

/// Counts the outstanding operations of one batch; the first error wins. The only way any transport, disk or device
/// reports that it is finished.
///
/// Thread-safe. A Completion without hook and parent may be destroyed as soon as done() was seen true: the finishing thread
/// does not touch it after the count reached zero. With a hook its owner keeps it until on_done(), with a parent until the
/// parent is done.
class MC_EXPORT Completion {
public:
    Completion() noexcept = default;
    /// A part of `parent`: when this one is done it counts as one operation of the parent (add()ed there by the caller). The
    /// hook is told before the parent.
    explicit Completion(Completion* parent, CompletionHook* hook = nullptr) noexcept : hook_(hook), parent_(parent) {}
    Completion(const Completion&) = delete;
    Completion& operator=(const Completion&) = delete;

    /// Announces operations. All of a batch are announced before the first is submitted, so that none can finish it early.
    void add(uint32_t operations) noexcept { state_.fetch_add(operations * kOne, std::memory_order_relaxed); }
    void succeed(uint64_t bytes, uint32_t operations = 1) noexcept;
    void fail(Error error, uint32_t operations = 1) noexcept;

    bool done() const noexcept { return (state_.load(std::memory_order_acquire) & ~kWaiting) == 0; }
    bool failed() const noexcept { return failure_.load(std::memory_order_acquire) != Failure::kNone; }
    uint32_t pending() const noexcept { return state_.load(std::memory_order_acquire) / kOne; }
    uint64_t bytes() const noexcept { return bytes_.load(std::memory_order_relaxed); }
    /// Whether it is `whole`, or a part of it at any depth.
    bool is_part_of(const Completion& whole) const noexcept {
        const Completion* here = this;
        while (here != nullptr && here != &whole) here = here->parent_;
        return here != nullptr;
    }

    /// Spins for at most `spin`, then sleeps. True when done; false at the deadline. Cancels nothing.
    bool wait(Deadline deadline, Duration spin = kDefaultSpin) noexcept;
    /// Bytes moved, or the first error. Only after done().
    Result<uint64_t> result() const;

    /// Makes a finished Completion usable again. Only its owner, and only after done().
    void reset() noexcept;

    static constexpr Duration kDefaultSpin = std::chrono::microseconds(50);

private:
    enum class Failure : uint8_t { kNone, kWriting, kSet };
    static constexpr uint32_t kWaiting = 1;  // somebody sleeps on state_
    static constexpr uint32_t kOne = 2;      // one operation

    void finish(uint32_t operations) noexcept;

    std::atomic<uint32_t> state_{0};
    std::atomic<Failure> failure_{Failure::kNone};
    std::atomic<uint64_t> bytes_{0};
    CompletionHook* const hook_ = nullptr;
    Completion* const parent_ = nullptr;
    Error error_;  // written once, by who moved failure_ to kWriting; read after kSet
};

}  // namespace mooncake
