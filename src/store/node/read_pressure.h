// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstddef>

#include "base/thread_annotations.h"
#include "base/time.h"

namespace mooncake::store {

/// How many readers wait for a disk just now: who copies between tiers stands back for them, but not for ever. Thread-safe.
class ReadPressure {
public:
    static constexpr size_t kMany = 8;
    static constexpr Duration kPatience = 100ms;

    void begin(size_t reads) {
        Lock lock(mutex_);
        reads_ += reads;
    }
    void end(size_t reads) {
        Lock lock(mutex_);
        reads_ -= reads;
        if (reads_ < kMany) eased_.notify_all();
    }
    /// Waits until there are few, kPatience at most.
    void stand_back() MC_NO_THREAD_ANALYSIS {
        std::unique_lock lock(mutex_);
        eased_.wait_for(lock, kPatience, [this]() MC_NO_THREAD_ANALYSIS { return reads_ < kMany; });
    }

private:
    Mutex mutex_;
    std::condition_variable_any eased_;
    size_t reads_ MC_GUARDED_BY(mutex_) = 0;
};

}  // namespace mooncake::store
