// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "store/master/transaction.h"

namespace mooncake::store {

/// How far a search for victims may go; each level includes the ones before.
enum class Sacrifice : uint8_t { kPlain, kSoftPinned, kPromised };

/// What keeps an entry from being evicted at this time, and until when; Shelf::kNone: nothing.
struct Hold {
    Shelf shelf = Shelf::kNone;
    Time until{};
};
Hold hold_of(const MasterState& state, ObjectId unit, Time now);

/// Finds and evicts the coldest entries, for one operation or one run of a job. Costs what it evicts, plus one step for each lease or promise
/// met on the way, at most kSetAsideMax of these per item. Borrows the transaction.
class Evictor {
public:
    static constexpr int kSetAsideMax = 4096;

    /// `protect`: never this object, nor its group.
    Evictor(Transaction& transaction, Time now, ObjectId protect = 0) : transaction_(transaction), now_(now), protect_(protect) {}

    /// The coldest entry that may go, of this tenant or (0) of whichever uses most of its share; 0: none.
    ObjectId next(TenantNumber tenant, Sacrifice most);
    /// Returns the bytes of the entry.
    uint64_t evict(ObjectId unit);
    /// Where memory is wanted: outside the segment names in use; and on suspects (also those `unreachable` to the writer), or not.
    struct Wanted {
        std::span<const uint32_t> names_in_use{};
        std::span<const uint32_t> unreachable{};
        bool suspects = false;
    };
    /// Evicts at most about `length` bytes, then a planned hole, so that a range of that length fits there; tells on which segment. Evicts
    /// nothing where no segment is wanted that is large enough.
    std::optional<SegmentNumber> make_room(uint64_t length, const Wanted& wanted, Sacrifice most);
    /// The same in this segment, by evicting one of the coldest there with its neighbours.
    bool make_room_on(SegmentNumber segment, uint64_t length, Sacrifice most);
    /// Nothing but leased entries are left: lets the coldest of them go, so that the memory is there when their leases are over, unless
    /// that much is on its way already.
    void condemn_leased(uint64_t length);
    /// Begins the search for another item of the operation.
    void restart(ObjectId protect) {
        protect_ = protect;
        set_aside_left_ = kSetAsideMax;
        obstacle_end_ = Time::max();
    }
    /// So many entries may have to go in this operation, or none: those that go are looked up together, so that their cache misses overlap.
    void expect(size_t victims) {
        expected_ = victims;
        prefetched_ = 0;
    }
    /// When the first of the leases that stood in the way of a hole is over; Time::max(): none did.
    Time obstacle_end() const noexcept { return obstacle_end_; }

private:
    const MasterState& state() const { return transaction_.state(); }
    Hold hold(ObjectId unit) const;
    ObjectId next_plain(TenantNumber tenant);
    void prefetch_coldest(TenantNumber tenant);
    ObjectId next_aside(TenantNumber tenant, Shelf shelf);
    template <typename Pick>
    ObjectId pick(TenantNumber tenant, Pick&& one);
    bool may_go(ObjectId unit, Sacrifice most);
    bool usable(SegmentNumber segment, const Wanted& wanted) const;
    std::optional<SegmentNumber> evict_hole(uint64_t length, Sacrifice most, const std::function<bool(SegmentNumber)>& usable);
    /// Around one of its replicas.
    std::optional<SegmentNumber> evict_hole_at(ObjectId unit, uint64_t length, Sacrifice most,
                                               const std::function<bool(SegmentNumber)>& usable);
    std::vector<ObjectId> hole_around(const Replica& replica, uint64_t length, Sacrifice most);

    Transaction& transaction_;
    const Time now_;
    ObjectId protect_;
    int set_aside_left_ = kSetAsideMax;
    size_t expected_ = 0, prefetched_ = 0;
    Time obstacle_end_ = Time::max();
};

}  // namespace mooncake::store
