// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/incarnation.h"
#include "base/time.h"
#include "store/protocol/codes.h"
#include "store/protocol/ids.h"

/// How values move between memory and disks (docs/tiers.md). Plain data, as in objects.h.
namespace mooncake::store {

// to the master -----------------------------------------------------------------------------------------------------------

/// Copies between tiers have numbers of their own: nobody can ask for them, and they are ended by end_copies() alone.
constexpr uint64_t kTierTaskBit = uint64_t{1} << 63;
constexpr bool is_tier_task(const TaskId& task) { return (task.low & kTierTaskBit) != 0; }

struct CopyEnd {
    TaskId task;
    StoreCode code = StoreCode::kOk;
    uint32_t in_doubt = 0;  // the target's segment, where bytes of a failed copy may still land; told again with 0 once they cannot
};
/// How orders of tiers ended. Answered with a code for each.
struct CopiesEnd {
    ClientId client;
    std::span<const CopyEnd> items;
    uint64_t window_bytes = 0;  // of values, that this node wants under way between its tiers from now on; 0: as before
};

/// Values that went from a disk by its node's own decision, or were found damaged there.
struct GoneReplica {
    std::string_view tenant, key;
    uint64_t generation = 0;
};
struct ReplicasGone {
    ClientId client;
    SegmentId segment;
    std::span<const GoneReplica> items;
};

// to a node ---------------------------------------------------------------------------------------------------------------

/// A part of a value on its disk that somebody wants to read.
struct StageItem {
    std::string_view tenant, key;
    uint64_t generation = 0;
    uint64_t offset = 0, length = 0;  // of the value; nothing: just whether it is there
};
struct StageRequest {
    SegmentId segment;
    std::span<const StageItem> items;
};
struct StagedPart {
    StoreCode code = StoreCode::kOk;  // kObjectNotFound: a miss. kNoAvailableHandle: no staging memory now
    uint64_t lease = 0;               // to be released; 0: nothing was staged
    uint64_t address = 0;             // in memory registered with the node's engine
    uint64_t length = 0;              // from the offset asked for; less than asked for: the rest is to be asked for next
    uint32_t first_hash = 0, hash_count = 0;
};
struct StageReply {
    std::vector<StagedPart> parts;
    /// XXH3-64 of the staged bytes, for each chunk (kChunkBytes) of the value or the part of it that was staged.
    std::vector<uint64_t> hashes;
    Duration lease_time{0};  // from the moment the request was sent: afterwards other bytes may lie there
    Incarnation engine{};    // whose addresses these are
};
struct ReleaseRequest {
    std::vector<uint64_t> leases;
};

}  // namespace mooncake::store
