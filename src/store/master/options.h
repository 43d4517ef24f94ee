// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/time.h"
#include "store/allocation/placement.h"
#include "store/allocation/range_allocator.h"

namespace mooncake::store {

/// Everything the master can be told, with its defaults. Fixed for the life of a state.
struct MasterOptions {
    // leases and pins
    Duration lease_ttl = 10s;
    double held_share = 1.0 / 16;  // of the pool, that leases and soft leases may hold for their full time once memory gets short; 0: all
    Duration soft_pin_ttl = 30min;
    Duration soft_pin_ttl_max = 24h;
    // eviction
    bool evict_soft_pinned = true;
    double eviction_ratio = 0.05;
    double high_watermark = 0.90;  // of memory in use, where it is freed ahead of need
    bool evict_ahead = false;      // off: memory is freed when a put needs it, and used to the last byte
    // writes and clients
    Duration client_ttl = 10s;
    Duration stream_down_client_ttl = 2s;     // of who was not heard of since its event stream broke: a process that was killed
    Duration put_discard_timeout = 30s;       // an unfinished write may be pre-empted from then on
    Duration put_release_timeout = 600s;      // its writer begins nothing more of it (PutStartReply::release): its memory is reused soon
    Duration silent_writer_quarantine = 30s;  // the same for a writer that stopped sending heartbeats, from its end
    Duration stopped_writer_quarantine =
        600s;  // and if its event stream did not break: the process is stopped, and may go on in the middle of a copy
    Duration stream_down_writer_timeout = 1s;  // who has not followed for so long is probably dead: its writes may be pre-empted
    // placement
    PlacementStrategy placement = PlacementStrategy::kRandom;
    uint64_t alignment = RangeAllocator::kDefaultAlignment;
    Duration suspect_min = 1s, suspect_max = 60s;  // no new writes to a segment reported failing; doubles while reports go on
    Duration silent_after =
        900ms;  // no new writes to who has not sent a heartbeat for so long (lenders do every 300 ms); zero: whatever it does
    // tenants
    bool tenants = false;  // off: all names mean the default tenant
    // tasks
    size_t pending_tasks_max = 10'000, processing_tasks_max = 10'000, finished_tasks_max = 10'000;
    Duration pending_task_timeout = 300s, processing_task_timeout = 300s;  // 0: none
    int drain_attempts = 3;                                                // per value, whatever made them fail
    // tiers (docs/tiers.md)
    bool offload = false;                 // values are copied to the disks of their nodes when they are put,
    bool offload_on_evict = false;        // or, with this, before they would have to be evicted
    bool offload_force_evict = false;     // what a disk has not got yet may be evicted for good
    size_t offload_queue_max = 50'000;    // values that wait, per node
    bool promote = false;                 // what is read from a disk comes back to memory
    uint32_t promotion_threshold = 2;     // at this read
    size_t promotion_queue_max = 50'000;  // per node
    // Must be above every generation given out by earlier masters of the same nodes: the wall clock in nanoseconds will do.
    uint64_t first_generation = 1;
    uint64_t hash_seed = 0;

    bool offloads() const noexcept { return offload || offload_on_evict; }
    /// What a writer moves it gives up after 2 s and 100 ns per byte; some more, since clocks and threads run late.
    Duration release_margin(uint64_t bytes) const noexcept {
        return silent_writer_quarantine + 100ns * static_cast<int64_t>(std::min(bytes, uint64_t{1} << 40));
    }
};

}  // namespace mooncake::store
