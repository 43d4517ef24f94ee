// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "base/error.h"
#include "store/tier/disk_io.h"
#include "store/tier/storage_tier.h"

namespace mooncake::store {

enum class TierEviction : uint8_t { kNone, kFifo, kLru };

struct LogTierOptions {
    uint64_t capacity_bytes = 0;  // of the disk that may be used
    uint64_t file_bytes = 0;      // 0: by the capacity
    double high_watermark = 0.90, low_watermark = 0.80;
    TierEviction eviction = TierEviction::kLru;
    uint64_t objects_max = 10'000'000;      // more are made room for like bytes
    uint64_t moved_bytes_per_s = 64 << 20;  // of values, while files are emptied
    uint64_t group_bytes_max = 64 << 20;    // that are committed together
    size_t queued_max = 65'536;             // values and removals that wait
    size_t reads_max = 16'384;              // that wait or run
    size_t small_buffers = 128, large_buffers = 32;
    size_t scan_threads = 8;  // at start
    TierObserver* observer = nullptr;
};

/// The tier on a disk, as a log of append-only files (docs/ssd.md). Thread-safe.
std::unique_ptr<StorageTier> make_log_tier(std::unique_ptr<Disk> disk, const LogTierOptions& options);

}  // namespace mooncake::store
