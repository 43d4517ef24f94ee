// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <utility>

#include "base/thread_annotations.h"
#include "base/time.h"

namespace mooncake::store {

/// Lets bytes of planned writes move only while the master that planned them is the one we follow: what a lost master planned must
/// have ended before another learns from us which ranges are free. Thread-safe.
class WriteFence {
public:
    /// Proof that a write is inside; leaves on destruction. Empty: its master is gone.
    class Pass {
    public:
        Pass() noexcept = default;
        explicit Pass(WriteFence* fence) noexcept : fence_(fence) {}
        Pass(Pass&& other) noexcept : fence_(std::exchange(other.fence_, nullptr)) {}
        Pass& operator=(Pass&& other) noexcept {
            std::swap(fence_, other.fence_);
            return *this;
        }
        ~Pass() {
            if (fence_ != nullptr) fence_->leave();
        }
        explicit operator bool() const noexcept { return fence_ != nullptr; }

    private:
        WriteFence* fence_ = nullptr;
    };

    /// `epoch`: the life of the master that planned the write.
    Pass enter(uint64_t epoch) {
        Lock lock(mutex_);
        if (epoch == 0 || epoch != epoch_) return Pass();
        ++inside_;
        return Pass(this);
    }
    /// As enter(), but waits for a master that we are just getting to know.
    Pass enter(uint64_t epoch, Deadline deadline) {
        mutex_.lock();
        // Not once another has followed it; but it may be the one that we have just lost sight of.
        const auto may_come = [&]() MC_REQUIRES(mutex_) { return epoch != 0 && (epoch_ == 0 || epoch != last_); };
        while (epoch_ != epoch && may_come() && !stopped_ && !deadline.passed()) changed_.wait_until(mutex_, deadline.at());
        const bool inside = epoch != 0 && epoch_ == epoch;
        if (inside) ++inside_;
        mutex_.unlock();
        return inside ? Pass(this) : Pass();
    }
    /// Nobody waits for a master any more.
    void stop() {
        Lock lock(mutex_);
        stopped_ = true;
        changed_.notify_all();
    }
    void open(uint64_t epoch) {
        Lock lock(mutex_);
        epoch_ = epoch;
        changed_.notify_all();
    }
    /// Refuses whoever comes from now on.
    void shut() {
        Lock lock(mutex_);
        if (epoch_ != 0) last_ = epoch_;
        epoch_ = 0;
    }
    /// Waits until nobody is inside; after shut().
    void drain() {
        mutex_.lock();
        while (inside_ != 0) empty_.wait(mutex_);
        mutex_.unlock();
    }
    uint64_t epoch() const {
        Lock lock(mutex_);
        return epoch_;
    }

private:
    void leave() {
        Lock lock(mutex_);
        if (--inside_ == 0) empty_.notify_all();
    }

    mutable Mutex mutex_;
    std::condition_variable_any empty_, changed_;
    uint64_t epoch_ MC_GUARDED_BY(mutex_) = 0;
    uint64_t last_ MC_GUARDED_BY(mutex_) = 0;  // before it
    bool stopped_ MC_GUARDED_BY(mutex_) = false;
    uint64_t inside_ MC_GUARDED_BY(mutex_) = 0;
};

}  // namespace mooncake::store
