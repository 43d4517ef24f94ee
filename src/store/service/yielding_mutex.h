// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

#include "base/thread_annotations.h"

namespace mooncake::store {

/// A mutex for those who do long work under it in short holds. Whoever unlocks a plain mutex and locks it again at once mostly gets it
/// before any of those who wait has woken up; here it can let one of them go first. Costs nothing more than a plain one while nobody waits.
class MC_THREAD_ATTRIBUTE(capability("mutex")) YieldingMutex {
public:
    void lock() MC_THREAD_ATTRIBUTE(acquire_capability()) MC_NO_THREAD_ANALYSIS {
        if (mutex_.try_lock()) return;
        waiting_.fetch_add(1);
        mutex_.lock();
        waiting_.fetch_sub(1);
        passed_.fetch_add(1);  // after the line above: who read it before and still saw us waiting will be told
        passed_.notify_all();
    }
    void unlock() MC_THREAD_ATTRIBUTE(release_capability()) MC_NO_THREAD_ANALYSIS { mutex_.unlock(); }

    /// For a thread that does not hold it: returns when one of those who wait now has got it, at once if nobody does.
    void give_way() const {
        const uint32_t passed = passed_.load();
        if (waiting_.load() != 0) passed_.wait(passed);
    }
    uint32_t waiting() const noexcept { return waiting_.load(); }

private:
    Mutex mutex_;
    std::atomic<uint32_t> waiting_{0};
    std::atomic<uint32_t> passed_{0};  // of those who had to wait
};

class MC_THREAD_ATTRIBUTE(scoped_lockable) YieldingLock {
public:
    explicit YieldingLock(YieldingMutex& mutex) MC_THREAD_ATTRIBUTE(acquire_capability(mutex)) : mutex_(mutex) { mutex_.lock(); }
    ~YieldingLock() MC_THREAD_ATTRIBUTE(release_capability()) { mutex_.unlock(); }
    YieldingLock(const YieldingLock&) = delete;
    YieldingLock& operator=(const YieldingLock&) = delete;

private:
    YieldingMutex& mutex_;
};

}  // namespace mooncake::store
