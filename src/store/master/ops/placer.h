// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "store/master/ops/evictor.h"
#include "store/master/transaction.h"
#include "store/protocol/objects.h"

namespace mooncake::store {

/// Finds memory for new values of one batch, evicting where it must. Borrows the transaction and the configuration.
class Placer {
public:
    struct Wanted {
        TenantNumber tenant = 0;
        uint64_t key_hash = 0;
        uint64_t length = 0;
        ObjectId keep = 0;  // never evict this one: its old value is what we have until the new one is there
    };
    struct Placed {
        StoreCode code = StoreCode::kOk;
        std::vector<ReplicaLocation> replicas;  // at least one if kOk; free now, not yet taken
    };

    /// `unreachable`: segments that the writer cannot reach now.
    Placer(Transaction& transaction, const WriteConfig& config, std::span<const uint32_t> unreachable, Time now);

    Placed place(const Wanted& wanted);
    /// How many replicas of one value can have a place, of those wished for; at least 1.
    uint32_t replicas_max() const noexcept { return replicas_max_; }
    /// So many of the next one's length are to be placed.
    void expect(size_t values) { evictor_.expect(values); }
    /// After a kNoAvailableHandle: when it may be worth trying again, from now; zero: not by waiting.
    Duration retry_after(uint64_t length);
    /// The part of disks in that; zero: none.
    Duration disk_wait(uint64_t length) const;

private:
    const MasterState& state() const { return transaction_.state(); }
    /// How many replicas the tenant can be charged for, after evicting its own things if need be.
    uint32_t affordable(const Wanted& wanted);
    SegmentNumber choose(const Wanted& wanted, Random& random);
    SegmentNumber choose_among(const Wanted& wanted, Random& random, bool suspects);

    Transaction& transaction_;
    const WriteConfig& config_;
    const std::span<const uint32_t> unreachable_;
    const Time now_;
    Evictor evictor_;
    std::vector<uint32_t> preferred_;     // positions in the view
    std::vector<uint32_t> names_in_use_;  // by the replicas of this value; kept for its memory
    uint32_t host_ = UINT32_MAX;
    uint32_t replicas_max_ = 1;
    std::optional<uint64_t> largest_possible_;  // capacity of a segment; see retry_after()
    bool reporting_ = false;                    // a segment, then
};

}  // namespace mooncake::store
