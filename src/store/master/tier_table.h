// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>

#include "base/time.h"
#include "store/master/counting_sketch.h"
#include "store/master/object.h"

namespace mooncake::store {

/// What a node that has a disk is to copy between its tiers, and how it gets on with that.
struct TierNode {
    static constexpr uint64_t kFirstWindow = 64 << 20, kWindowMin = 1 << 20, kWindowMax = uint64_t{64} << 30;
    static constexpr uint32_t kFailuresMax = 3;  // in a row: then its disk is of no use, and nothing waits for it
    static constexpr Duration kPauseMin = 100ms, kPauseMax = 10s;

    /// A value that waits.
    struct Entry {
        ObjectId object = 0;
        uint64_t generation = 0;
    };

    bool works() const noexcept { return failures < kFailuresMax; }
    /// One that fails is tried with one value at a time.
    bool has_room(uint64_t bytes) const noexcept { return under_way == 0 || (failures == 0 && under_way + bytes <= window); }
    void began(uint64_t bytes, Time now) {
        if (under_way == 0) {
            measured_from = now;
            measured = 0;
        }
        under_way += bytes;
        ++copies;
    }
    /// `blamed`: it did not go well, and the disk is to blame.
    void ended(uint64_t bytes, bool well, bool blamed, Time now) {
        under_way -= bytes;
        --copies;
        if (well) {
            failures = 0;
            measured += bytes;
            if (const Duration took = now - measured_from; took >= 50ms || (under_way == 0 && took > Duration::zero())) {
                const double rate = static_cast<double>(measured) / std::chrono::duration<double>(took).count();
                bytes_per_second = bytes_per_second == 0 ? rate : (bytes_per_second + rate) / 2;
                measured_from = now;
                measured = 0;
            }
        } else if (blamed && now >= paused_until) {  // of several that break off together the first one counts
            paused_until = now + std::min(kPauseMin * (1 << std::min(failures, 10u)), kPauseMax);
            ++failures;
        }
    }
    /// How long it will take to offload that much.
    Duration time_for(uint64_t bytes) const {
        if (bytes_per_second <= 0) return 50ms;
        return std::chrono::duration_cast<Duration>(
            std::chrono::duration<double>(std::min(static_cast<double>(bytes) / bytes_per_second, 1e6)));
    }

    std::deque<Entry> offloads, promotions;
    uint64_t window = kFirstWindow;
    uint64_t under_way = 0;  // bytes of values
    size_t copies = 0;       // these
    uint32_t failures = 0;   // in a row
    Time paused_until{};
    Time measured_from{};
    uint64_t measured = 0;  // bytes, since then
    double bytes_per_second = 0;
};

/// Counted since the start, for people to look at.
struct TierTotals {
    struct Copies {
        uint64_t queued = 0, started = 0, ended = 0, ended_bytes = 0, failed = 0, cancelled = 0, expired = 0;
        uint64_t no_room = 0;  // in the queue
    };
    Copies offloads, promotions;
    uint64_t reads = 0;  // of values that lie on disks alone
    uint64_t read_bytes = 0;
    uint64_t too_seldom = 0, too_full = 0;      // of these, how many brought nothing back for that reason
    uint64_t released = 0, released_bytes = 0;  // values that left memory, being on a disk
    uint64_t gone = 0;                          // replicas that nodes gave up
};

/// All of them, and the copies that are under way between tiers, in the order in which they began. Not thread-safe.
struct TierTable {
    std::map<ClientNumber, TierNode> nodes;  // those that have a disk
    std::map<uint64_t, CopyId> copies;       // by the lower half of their tasks' ids
    uint64_t last_task = 0;
    CountingSketch reads;
    TierTotals totals;
    size_t on_disk_values = 0;    // that have a replica on a disk
    size_t disk_only_values = 0;  // and none in memory
    // How fast values are put.
    uint64_t put_bytes = 0;
    Time looked{};
    uint64_t looked_bytes = 0;  // put until then
    uint64_t last_second_bytes = 0;
};

}  // namespace mooncake::store
