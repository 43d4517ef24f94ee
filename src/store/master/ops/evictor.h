// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "store/master/ops/hole_finder.h"
#include "store/master/transaction.h"

namespace mooncake::store {

/// Finds and evicts the coldest entries, for one operation or one run of a job. What lies on a disk as well just leaves memory; what is to be offloaded first is set aside
/// for that, kDirtyMax at most per item. Costs what it evicts, plus one step for each lease or soft lease
/// met on the way, at most kSetAsideMax of these per item. Borrows the transaction.
class Evictor {
public:
    static constexpr int kSetAsideMax = 4096, kDirtyMax = 64;

    /// `protect`: never this object, nor its group. `for_drain`: makes room without what a drain keeps.
    Evictor(Transaction& transaction, Time now, ObjectId protect = 0, bool for_drain = false)
        : transaction_(transaction), now_(now), for_drain_(for_drain), protect_(protect),
          holes_(transaction.state(), now, protect, for_drain) {}

    /// The coldest entry that may go, of this tenant or (0) of whichever uses most of its share; 0: none.
    ObjectId next(TenantNumber tenant, Sacrifice most);
    /// Returns the bytes of the entry.
    uint64_t evict(ObjectId unit);
    /// Evicts what lies side by side, so that a range of that length fits there, and tells on which segment: a value that is long enough, if it
    /// is nearly as cold as the coldest, else the cheapest hole. Evicts nothing where it finds none.
    std::optional<SegmentNumber> make_room(uint64_t length, const RoomWanted& wanted, Sacrifice most);
    bool make_room_on(SegmentNumber segment, uint64_t length, Sacrifice most) {
        return make_room(length, {.only = segment}, most).has_value();
    }
    /// Where a range of that length, as rounded, fits on the segment. Finds the room that was made there also among many ranges that are nearly
    /// long enough, before which the allocator's own search ends.
    std::optional<uint64_t> find_room(SegmentNumber segment, uint64_t bytes) const;
    /// If nothing but leased entries is left, lets the coldest of them go, so that the memory is there when their leases are over, unless
    /// that much is on its way already.
    void condemn_leased(uint64_t length);
    /// Begins the search for another item of the operation.
    void restart(ObjectId protect) {
        protect_ = protect;
        set_aside_left_ = kSetAsideMax;
        dirty_left_ = kDirtyMax;
        made_.clear();
        holes_.restart(protect);
    }
    /// So many values of the length that is wanted next are still to be placed, that one included: where ordinary eviction makes room for the
    /// first, it does for some more. Their cache misses overlap, and what was put together comes free together, as one range.
    void expect(size_t values) { expected_ = values; }
    /// When the first of the leases that stood in the way of a hole is over; Time::max(): none did.
    Time obstacle_end() const noexcept { return holes_.obstacle_end(); }

private:
    static constexpr int kLongEnoughTries = 16;  // of a class
    static constexpr int kSearchesMax = 8;       // for holes, beginning with as many tenants
    static constexpr size_t kTogetherMax = 32;   // entries, and this part of the pool:
    static constexpr uint64_t kTogetherShare = 128;

    const MasterState& state() const { return transaction_.state(); }
    ObjectId next_plain(TenantNumber tenant);
    ObjectId next_plain(TenantNumber tenant, size_t size_class);
    /// How many values of that length may go at once.
    size_t together(uint64_t length) const;
    void prefetch_coldest(const EvictionPolicy& policy, size_t size_class, size_t count) const;
    ObjectId next_aside(TenantNumber tenant, Shelf shelf);
    /// False: that was enough for this item.
    bool set_aside(ObjectId unit, const Hold& held);
    /// What stood in the way of a hole is offloaded next, wherever it is in the order: else a long value might never find room.
    void set_dirty_aside();
    template <typename Pick>
    auto pick(TenantNumber tenant, Pick&& one) -> decltype(one(tenant));
    /// The ordinary case: the coldest value of this tenant that is long enough is nearly as cold as any.
    SegmentNumber evict_cold(TenantNumber tenant, uint64_t length, const RoomWanted& wanted);
    /// The first of a class that is, if it is so old, and as many like it behind it as are expected.
    SegmentNumber evict_long_enough(ObjectId first, uint64_t length, const RoomWanted& wanted, uint64_t cold);
    /// The first that was set aside for that.
    SegmentNumber evict_aside(TenantNumber tenant, uint64_t length, const RoomWanted& wanted, Sacrifice most);
    /// The replica whose place is long enough, where room is wanted; its segment is 0: none.
    Replica long_enough(ObjectId unit, uint64_t length, const RoomWanted& wanted) const;
    /// By the order of age alone.
    SegmentNumber evict_one(TenantNumber tenant, uint64_t length, const RoomWanted& wanted, Sacrifice most);
    SegmentNumber evict_hole(TenantNumber tenant, uint64_t length, const RoomWanted& wanted, Sacrifice most);

    Transaction& transaction_;
    const Time now_;
    const bool for_drain_;
    ObjectId protect_;
    int set_aside_left_ = kSetAsideMax, dirty_left_ = kDirtyMax;
    size_t expected_ = 1;
    HoleFinder holes_;
    std::vector<ReplicaLocation> made_;  // where room was made for this item
};

}  // namespace mooncake::store
