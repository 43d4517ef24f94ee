// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/time.h"
#include "store/tier/log_tier.h"

namespace mooncake::store {

/// The directory on a local disk in which a node keeps values.
struct DiskConfig {
    std::string path{};           // an existing directory of its own, absolute, no symbolic link; empty: none
    uint64_t capacity_bytes = 0;  // 0: nine tenths of what its file system has free, and what is used already
    uint64_t objects_max = 10'000'000;
    TierEviction eviction = TierEviction::kLru;
    double high_watermark = 0.90, low_watermark = 0.80;
    DiskKind kind = DiskKind::kAny;
    uint64_t staging_bytes = uint64_t{1280} << 20;  // at most, for readers elsewhere
    Duration staging_lease = 5s;
    /// Makes the tier; empty: a LogTier in `path`.
    std::function<std::unique_ptr<StorageTier>(TierObserver& observer)> make_tier{};
};

}  // namespace mooncake::store
