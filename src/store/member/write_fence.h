// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <utility>

#include "base/boot_clock.h"
#include "base/thread_annotations.h"
#include "base/time.h"

namespace mooncake::store {

/// The right to move bytes of planned writes: a lease that the master renews with every heartbeat it answers, and that ends for good when the
/// master is lost. A write belongs to the turn (one time of being open) in which it was planned: after a later one, even under the same
/// master, its range may be somebody else's. Thread-safe.
///
/// Who is inside looks at the clock before each step (Pass::holds()): after a process was stopped its threads go on before any of them
/// notices that the master has given it up.
class WriteFence {
public:
    /// How things stood before the master was asked to plan a write.
    struct Mark {
        uint64_t turn = 0, epoch = 0;  // epoch 0: not open
    };
    /// Proof that a write is inside; leaves on destruction. Empty: its turn is over.
    class Pass {
    public:
        Pass() noexcept = default;
        Pass(WriteFence* fence, uint64_t turn, uint64_t epoch) noexcept : fence_(fence), turn_(turn), epoch_(epoch) {}
        Pass(Pass&& other) noexcept : fence_(std::exchange(other.fence_, nullptr)), turn_(other.turn_), epoch_(other.epoch_) {}
        Pass& operator=(Pass&& other) noexcept {
            std::swap(fence_, other.fence_);
            std::swap(turn_, other.turn_);
            std::swap(epoch_, other.epoch_);
            return *this;
        }
        ~Pass() {
            if (fence_ != nullptr) fence_->leave();
        }
        explicit operator bool() const noexcept { return fence_ != nullptr; }
        /// Whether the next bytes may move, as far as the clock tells.
        bool holds() const noexcept { return fence_ != nullptr && fence_->holds(); }
        uint64_t turn() const noexcept { return turn_; }
        uint64_t epoch() const noexcept { return epoch_; }

    private:
        WriteFence* fence_ = nullptr;
        uint64_t turn_ = 0, epoch_ = 0;
    };

    Mark mark() const {
        Lock lock(mutex_);
        return {.turn = turn_, .epoch = epoch_};
    }
    /// For whatever belongs to the present turn.
    Pass enter() {
        Lock lock(mutex_);
        return epoch_ == 0 ? Pass() : let_in();
    }
    /// For what was planned in the turn of the mark.
    Pass enter(const Mark& mark) {
        Lock lock(mutex_);
        return mark.epoch == 0 || mark.turn != turn_ ? Pass() : let_in();
    }
    /// For what the master of life `epoch` planned after the mark was taken. If that was not our master then, it is waited for; but its
    /// plan counts only for the first turn that we have with it, and only if that comes by the deadline.
    Pass enter(uint64_t epoch, const Mark& mark, Deadline deadline) {
        if (epoch == 0) return Pass();
        if (epoch == mark.epoch) return enter(mark);
        const uint64_t first = mark.epoch == 0 ? mark.turn + 1 : mark.turn + 2;
        mutex_.lock();
        while (turn_ < first && !stopped_ && !deadline.passed()) changed_.wait_until(mutex_, deadline.at());
        Pass pass = turn_ == first && epoch_ == epoch && opened_at_ <= deadline.at() ? let_in() : Pass();
        mutex_.unlock();
        return pass;
    }
    /// Nobody waits for a master any more.
    void stop() {
        Lock lock(mutex_);
        stopped_ = true;
        changed_.notify_all();
    }
    /// Good until then, also where it was good for less before.
    void renew(BootTime until) noexcept { until_.store(until, std::memory_order_relaxed); }
    void open(uint64_t epoch) {
        Lock lock(mutex_);
        if (epoch_ != 0) return;
        epoch_ = epoch;
        ++turn_;
        opened_at_ = Clock::now();
        changed_.notify_all();
    }
    /// Refuses whoever comes from now on.
    void shut() {
        Lock lock(mutex_);
        if (epoch_ == 0) return;
        epoch_ = 0;
        ++turn_;
    }
    /// Waits until nobody is inside; after shut().
    void drain() {
        mutex_.lock();
        while (inside_ != 0) empty_.wait(mutex_);
        mutex_.unlock();
    }
    bool holds() const noexcept { return BootClock::now() < until_.load(std::memory_order_relaxed); }

private:
    Pass let_in() MC_REQUIRES(mutex_) {
        if (!holds()) return Pass();
        ++inside_;
        return Pass(this, turn_, epoch_);
    }
    void leave() {
        Lock lock(mutex_);
        if (--inside_ == 0) empty_.notify_all();
    }

    std::atomic<BootTime> until_{BootTime::min()};
    mutable Mutex mutex_;
    std::condition_variable_any empty_, changed_;
    uint64_t epoch_ MC_GUARDED_BY(mutex_) = 0;  // of the master that we follow; 0: shut
    uint64_t turn_ MC_GUARDED_BY(mutex_) = 0;   // odd while open
    Time opened_at_ MC_GUARDED_BY(mutex_){};
    bool stopped_ MC_GUARDED_BY(mutex_) = false;
    uint64_t inside_ MC_GUARDED_BY(mutex_) = 0;
};

}  // namespace mooncake::store
