// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "store/master/state.h"

namespace mooncake::store {

/// How far a search for victims may go; each level includes the ones before.
enum class Sacrifice : uint8_t { kPlain, kSoftPinned, kSoftLeased };

/// What keeps an entry from being evicted at this time, and until when; Shelf::kNone: nothing.
struct Hold {
    Shelf shelf = Shelf::kNone;
    Time until{};
};
Hold hold_of(const MasterState& state, ObjectId unit, Time now);

/// Where memory is wanted: outside the segment names in use; and on suspects (also those `unreachable` to the writer), or not.
struct RoomWanted {
    std::span<const uint32_t> names_in_use{};
    std::span<const uint32_t> unreachable{};
    bool suspects = false;
    SegmentNumber only = 0;  // there and nowhere else, whatever the above say
};
bool is_wanted(const MasterState& state, SegmentNumber segment, const RoomWanted& wanted);

/// Finds entries that lie side by side and leave a long enough range when they go; lets nothing go itself. Looks around the longest free
/// ranges, around the coldest entries of each class of lengths and at random, and compares what the holes cost: the bytes that go, each by
/// how warm it is. Looks at some times as many entries as a hole has. Borrows the state.
class HoleFinder {
public:
    struct Hole {
        SegmentNumber segment = 0;  // 0: none was found
        uint64_t offset = 0;
        std::vector<ObjectId> victims;
    };

    /// `protect`: never this object, nor its group. `for_drain`: nor what a drain keeps.
    HoleFinder(const MasterState& state, Time now, ObjectId protect, bool for_drain = false)
        : state_(state), now_(now), protect_(protect), for_drain_(for_drain) {}
    void restart(ObjectId protect) {
        protect_ = protect;
        obstacle_end_ = Time::max();
        dirty_.clear();
    }

    Hold hold(ObjectId unit) const;
    /// For a value of that length, beginning with this tenant's values.
    Hole find(TenantNumber tenant, uint64_t length, const RoomWanted& wanted, Sacrifice most);
    /// When the first of the leases that stood in the way is over; Time::max(): none did.
    Time obstacle_end() const noexcept { return obstacle_end_; }
    /// Some of those that stood in the way because no disk has them yet.
    std::vector<ObjectId> take_dirty() { return std::exchange(dirty_, {}); }

private:
    static constexpr size_t kDirtyMax = 64;
    static constexpr uint64_t kBlocksMin = 8, kBlocksMax = 1 << 20;  // looked at in one kind of place
    static constexpr int kStartsMax = 512;                           // of a list
    static constexpr int kHolesMax = 4;                              // of a list
    static constexpr int kSamplesMax = 64;                           // of all entries, whatever their age
    static constexpr size_t kSegmentsMax = 8;                        // that are looked at for themselves
    static constexpr uint64_t kWarmest = 256;

    struct Run {
        SegmentNumber segment = 0;
        uint64_t begin = 0, end = 0;
    };
    /// One search.
    struct Search {
        uint64_t bytes = 0;
        const RoomWanted& wanted;
        Sacrifice most;
        Hole best;
        uint64_t best_cost = UINT64_MAX;
        size_t blocks_left = 0;
        std::vector<Run> seen;

        bool over() const { return best_cost <= bytes * kWarmest / 4 || blocks_left == 0; }  // cold enough, or too much already
    };
    struct Side;

    bool may_go(ObjectId unit, Sacrifice most);
    bool kept_by_drain(ObjectId unit);
    /// Of the tenant's coldest, but no more than it takes to write to the whole pool once.
    uint64_t greatest_age(TenantNumber tenant);
    void look_around(ObjectId first, bool aside, Search& search);
    /// Returns how many holes it found.
    int look_around_one(ObjectId unit, Search& search);
    bool look_around_block(SegmentNumber segment, RangeAllocator::Block block, Search& search);
    template <typename Visit>
    void some_segments(const Search& search, Visit&& visit) const;
    uint64_t blocks_in_a_hole(const Search& search) const;
    void look_around_free_blocks(Search& search);
    void look_anywhere(Search& search);
    static bool seen(SegmentNumber segment, uint64_t offset, const Search& search);
    Side side(const RangeAllocator& allocator, RangeAllocator::Block block, Search& search);
    uint64_t cost(std::span<const ObjectId> victims);

    const MasterState& state_;
    const Time now_;
    ObjectId protect_;
    const bool for_drain_;
    GroupId judged_ = 0;  // the last group that was asked for, which has many members
    bool judged_kept_ = false;
    Time obstacle_end_ = Time::max();
    std::vector<ObjectId> dirty_;
    TenantNumber aged_ = 0;  // whose greatest_age_ it is, in this search
    uint64_t greatest_age_ = 0;
};

}  // namespace mooncake::store
