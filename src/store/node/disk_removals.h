// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/completion.h"
#include "base/thread_annotations.h"
#include "store/node/tier_metrics.h"
#include "store/tier/storage_tier.h"

namespace mooncake::store {

/// Removals on their way to a disk, each until it is durable: what the disk does not take, or fails, is tried again by retry(). Thread-safe. The disk
/// is closed before this ends.
class DiskRemovals {
public:
    static constexpr size_t kFailedMax = 1 << 20;

    struct Removal {
        std::string tenant, key;
        uint64_t generation = 0;
    };
    DiskRemovals(StorageTier& tier, TierMetrics& metrics) : tier_(tier), metrics_(metrics) {}

    /// Does not wait.
    void add(std::vector<Removal> removals);
    /// Once more what has failed. False: there was nothing.
    bool retry();
    /// A value of this generation is to come to the disk again: what removals of it have failed, or will, is not tried again.
    void forget(uint64_t generation);
    size_t failed() const;

private:
    struct Batch;
    void ended(Batch& batch);

    StorageTier& tier_;
    TierMetrics& metrics_;
    mutable Mutex mutex_;
    std::unordered_map<uint64_t, Removal> failed_ MC_GUARDED_BY(mutex_);      // by generation, each of which is one value's
    std::unordered_map<uint64_t, uint32_t> under_way_ MC_GUARDED_BY(mutex_);  // how many of a generation
    std::unordered_set<uint64_t> recalled_ MC_GUARDED_BY(mutex_);             // of these, what is to come again
};

}  // namespace mooncake::store
