// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <unordered_map>

#include "base/thread_annotations.h"
#include "base/time.h"
#include "store/protocol/ids.h"

namespace mooncake::store {

/// Segments that lately let a reader wait although another replica was there: tried last for a second. Thread-safe.
class SlowSegments {
public:
    void add(const SegmentId& segment, Time now) {
        Lock lock(mutex_);
        std::erase_if(until_, [now](const auto& one) { return one.second <= now; });
        until_[segment] = now + kRest;
        some_.store(true, std::memory_order_release);
    }
    bool contains(const SegmentId& segment, Time now) const {
        if (!some_.load(std::memory_order_acquire)) return false;
        Lock lock(mutex_);
        const auto found = until_.find(segment);
        return found != until_.end() && found->second > now;
    }

private:
    static constexpr Duration kRest = 1s;

    mutable Mutex mutex_;
    std::unordered_map<SegmentId, Time> until_ MC_GUARDED_BY(mutex_);
    std::atomic<bool> some_{false};  // there was one once: spares healthy clients the lock
};

}  // namespace mooncake::store
