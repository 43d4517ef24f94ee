// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/thread_annotations.h"
#include "store/allocation/range_allocator.h"
#include "store/client/values.h"

namespace mooncake::store {

/// Cuts buffers for callers out of one piece of registered memory, which it does not own. Thread-safe. Must outlive every buffer
/// it gave out.
class StagingPool {
public:
    StagingPool(std::byte* memory, uint64_t size) : memory_(memory), allocator_(size) {}
    StagingPool(const StagingPool&) = delete;
    StagingPool& operator=(const StagingPool&) = delete;

    /// Empty when there is not enough left in one piece, and for no bytes.
    StagingBuffer take(uint64_t length);
    void give_back(uint32_t block);

    uint64_t free_bytes() const;

private:
    std::byte* const memory_;
    mutable Mutex mutex_;
    RangeAllocator allocator_ MC_GUARDED_BY(mutex_);
};

}  // namespace mooncake::store
