// SPDX-License-Identifier: Apache-2.0
#include "store/master/ops/hole_finder.h"

#include <algorithm>

namespace mooncake::store {

Hold hold_of(const MasterState& state, ObjectId unit, Time now) {
    const bool untold = state.objects()[unit].untold;
    const Time leased = untold ? Time{} : state.lease_end(unit, now), soft_leased = untold ? Time{} : state.soft_lease_end(unit, now);
    const Time pinned = state.soft_pin_end(unit, now);
    if (leased > now) return {Shelf::kLeased, leased};
    if (state.offloads() && state.waits_for_disk(unit)) return {Shelf::kDirty, Time::max()};
    if (pinned > now && !state.options().evict_soft_pinned) return {Shelf::kSoftPinned, pinned};
    if (soft_leased > now) return {Shelf::kSoftLeased, soft_leased};
    if (pinned > now) return {Shelf::kSoftPinned, pinned};
    return {};
}

bool is_wanted(const MasterState& state, SegmentNumber segment, const RoomWanted& wanted) {
    const SegmentTable& segments = state.segments();
    if (segments[segment].view_position == UINT32_MAX) return false;
    if (wanted.only != 0) return segment == wanted.only;
    const SegmentView& view = segments.view().segments[segments[segment].view_position];
    const auto& names = wanted.names_in_use;
    return is_suspect(view, wanted.unreachable) == wanted.suspects && std::find(names.begin(), names.end(), view.name) == names.end();
}

Hold HoleFinder::hold(ObjectId unit) const {
    if (protect_ != 0 && state_.unit(protect_) == unit) return {Shelf::kLeased, now_};  // comes back when the clock moves
    return hold_of(state_, unit, now_);
}

bool HoleFinder::may_go(ObjectId unit, Sacrifice most) {
    if (state_.objects()[unit].shelf == Shelf::kNone || (for_drain_ && kept_by_drain(unit))) return false;
    const Hold held = hold(unit);
    if (held.shelf == Shelf::kNone) return true;
    if (held.shelf == Shelf::kSoftPinned && most >= Sacrifice::kSoftPinned && state_.options().evict_soft_pinned) return true;
    if (held.shelf == Shelf::kSoftLeased && most >= Sacrifice::kSoftLeased) return true;
    if (held.shelf == Shelf::kDirty) {
        if (state_.objects()[unit].shelf != Shelf::kDirty && dirty_.size() < kDirtyMax) dirty_.push_back(unit);
    } else if (held.until > now_) {
        obstacle_end_ = std::min(obstacle_end_, held.until);
    }
    return false;
}

bool HoleFinder::kept_by_drain(ObjectId unit) {
    const GroupId group = state_.objects()[unit].group;
    if (group == 0) return state_.kept_by_drain(unit);
    if (group != judged_) judged_kept_ = state_.kept_by_drain(unit);
    judged_ = group;
    return judged_kept_;
}

uint64_t HoleFinder::greatest_age(TenantNumber tenant) {
    if (tenant == aged_) return greatest_age_;
    aged_ = tenant;
    greatest_age_ = 0;
    const EvictionPolicy& policy = state_.tenants()[tenant].order.policy();
    for (size_t c = 0; c < EvictionPolicy::kClasses; ++c)
        if (const ObjectId unit = policy.coldest(c); unit != 0) greatest_age_ = std::max(greatest_age_, policy.age(unit));
    return greatest_age_ = std::min(greatest_age_, state_.segments().capacity());
}

/// What a hole would take in next at one of its ends.
struct HoleFinder::Side {
    RangeAllocator::Block block = 0;  // 0: it ends here
    ObjectId unit = 0;                // 0: free already
    uint64_t age = UINT64_MAX;
};

HoleFinder::Hole HoleFinder::find(TenantNumber tenant, uint64_t length, const RoomWanted& wanted, Sacrifice most) {
    if (most == Sacrifice::kPlain && state_.tenants()[tenant].order.policy().size() == 0) return {};
    aged_ = 0;
    Search search{.bytes = state_.rounded(length), .wanted = wanted, .most = most, .best = {}, .seen = {}};
    const EvictionOrder& order = state_.tenants()[tenant].order;
    const size_t own = EvictionPolicy::class_of(length);
    // Each of these places gets its share of the effort.
    const uint64_t share = kBlocksMin + 2 * blocks_in_a_hole(search);
    const auto effort = [&](size_t shares) { search.blocks_left = std::min<uint64_t>(search.blocks_left + shares * share, kBlocksMax); };
    effort(1);
    look_around_free_blocks(search);
    effort(1);
    for (size_t c = own; c < EvictionPolicy::kClasses; ++c) look_around(order.policy().coldest(c), false, search);
    effort(1);
    for (size_t c = own; c-- > 0;) look_around(order.policy().coldest(c), false, search);
    if (most >= Sacrifice::kSoftPinned) look_around(order.first_aside(Shelf::kSoftPinned), true, search);
    if (most >= Sacrifice::kSoftLeased) look_around(order.first_aside(Shelf::kSoftLeased), true, search);
    effort(search.best.segment != 0 ? 1 : 4);
    look_anywhere(search);
    return std::move(search.best);
}

/// Some of the segments in the view, by turns.
template <typename Visit>
void HoleFinder::some_segments(const Search& search, Visit&& visit) const {
    const auto view = state_.segments().view().segments;
    if (search.wanted.only != 0) return visit(search.wanted.only, state_.segments()[search.wanted.only].allocator);
    for (size_t i = 0; i < std::min(view.size(), kSegmentsMax); ++i) {
        const SegmentNumber segment = view[(state_.next_generation() + i) % view.size()].segment;
        if (is_wanted(state_, segment, search.wanted)) visit(segment, state_.segments()[segment].allocator);
    }
}

/// As far as one can tell from how many there are.
uint64_t HoleFinder::blocks_in_a_hole(const Search& search) const {
    uint64_t most = 1;
    some_segments(search, [&](SegmentNumber, const RangeAllocator& allocator) {
        most = std::max(most, search.bytes / (allocator.used_bytes() / (allocator.used_blocks() + 1) + 1));
    });
    return most;
}

void HoleFinder::look_around_free_blocks(Search& search) {
    some_segments(search, [&](SegmentNumber segment, const RangeAllocator& allocator) {
        if (const RangeAllocator::Block block = allocator.long_free_block(); block != 0 && !search.over())
            look_around_block(segment, block, search);
    });
}

/// The coldest may all lie in one place, among others that must stay.
void HoleFinder::look_anywhere(Search& search) {
    const PlacementView view = state_.segments().view();
    Random random(state_.next_generation());
    int holes = kHolesMax;
    for (int i = 0; i < kSamplesMax && holes > 0 && !search.over(); ++i) {
        const SegmentNumber segment = search.wanted.only != 0 ? search.wanted.only
                                                              : view.segments[placement_detail::draw(view, random)].segment;
        const RangeAllocator& allocator = state_.segments()[segment].allocator;
        const auto block = static_cast<RangeAllocator::Block>(random.below(allocator.limit()));
        if (block == 0 || !is_wanted(state_, segment, search.wanted) || seen(segment, allocator.offset(block), search)) continue;
        if (side(allocator, block, search).block != 0 && look_around_block(segment, block, search)) --holes;
    }
}

bool HoleFinder::seen(SegmentNumber segment, uint64_t offset, const Search& search) {
    return std::any_of(search.seen.begin(), search.seen.end(),
                       [&](const Run& run) { return run.segment == segment && run.begin <= offset && offset < run.end; });
}

void HoleFinder::look_around(ObjectId first, bool aside, Search& search) {
    if (first == 0) return;
    const EvictionPolicy& policy = state_.tenants()[state_.objects()[first].tenant].order.policy();
    int starts = kStartsMax, holes = kHolesMax;
    for (ObjectId unit = first; unit != 0 && starts-- > 0 && holes > 0 && !search.over();) {
        if (may_go(unit, search.most)) holes -= look_around_one(unit, search);
        unit = aside ? state_.objects()[unit].order.next : policy.next_coldest(unit);
    }
}

int HoleFinder::look_around_one(ObjectId unit, Search& search) {
    int holes = 0;
    for (const ObjectId id : state_.members(unit)) {
        const ReplicaList& replicas = state_.objects()[id].replicas;
        for (size_t i = 0; i < replicas.size() && !search.over(); ++i) {
            if (!is_wanted(state_, replicas[i].segment, search.wanted)) continue;
            if (!seen(replicas[i].segment, replicas[i].offset, search) && look_around_block(replicas[i].segment, replicas[i].block, search))
                ++holes;
        }
    }
    return holes;
}

HoleFinder::Side HoleFinder::side(const RangeAllocator& allocator, RangeAllocator::Block block, Search& search) {
    if (block == 0 || search.blocks_left == 0) return {};
    --search.blocks_left;
    if (allocator.is_free(block)) return {.block = block};
    if (!allocator.is_used(block)) return {};
    const uint64_t owner = allocator.owner(block);
    if (owner_kind(owner) != OwnerKind::kObject) return {};
    const ObjectId unit = state_.unit(owner_number(owner));
    if (!may_go(unit, search.most)) return {};
    return {.block = block, .unit = unit, .age = state_.tenants()[state_.objects()[unit].tenant].order.policy().age(unit)};
}

/// Grows a hole from this block to both sides, by the colder neighbour each time, until it is long enough or can grow no further.
bool HoleFinder::look_around_block(SegmentNumber segment, RangeAllocator::Block block, Search& search) {
    const RangeAllocator& allocator = state_.segments()[segment].allocator;
    std::vector<ObjectId> victims;
    if (!allocator.is_free(block)) victims.push_back(state_.unit(owner_number(allocator.owner(block))));
    uint64_t begin = allocator.offset(block), end = begin + allocator.length(block);
    Side left = side(allocator, allocator.previous(block), search), right = side(allocator, allocator.next(block), search);
    while (end - begin < search.bytes && (left.block != 0 || right.block != 0)) {
        const bool to_right = right.block != 0 && (left.block == 0 || right.age >= left.age);
        Side& grown = to_right ? right : left;
        if (grown.unit != 0) victims.push_back(grown.unit);
        if (to_right) {
            end += allocator.length(grown.block);
            grown = side(allocator, allocator.next(grown.block), search);
        } else {
            begin -= allocator.length(grown.block);
            grown = side(allocator, allocator.previous(grown.block), search);
        }
    }
    search.seen.push_back({segment, begin, end});
    if (end - begin < search.bytes) return false;
    std::sort(victims.begin(), victims.end());
    victims.erase(std::unique(victims.begin(), victims.end()), victims.end());
    if (const uint64_t found = cost(victims); found < search.best_cost) {
        search.best_cost = found;
        search.best = {segment, begin, std::move(victims)};
    }
    return true;
}

/// The bytes that go, by how warm they are.
uint64_t HoleFinder::cost(std::span<const ObjectId> victims) {
    uint64_t sum = 0;
    for (const ObjectId unit : victims) {
        const Object& object = state_.objects()[unit];
        const uint64_t greatest = greatest_age(object.tenant);
        const uint64_t age = std::min(greatest, state_.tenants()[object.tenant].order.policy().age(unit));
        const uint64_t warmth = greatest == 0 ? 0 : object.reused ? kWarmest : kWarmest - age / (greatest / kWarmest + 1);
        sum += state_.bytes_of(unit) * warmth;
    }
    return sum;
}

}  // namespace mooncake::store
