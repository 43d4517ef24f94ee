// SPDX-License-Identifier: Apache-2.0
#include "store/master/ops/evictor.h"

#include <algorithm>
#include <array>
#include <unordered_set>

namespace mooncake::store {

Hold hold_of(const MasterState& state, ObjectId unit, Time now) {
    Time leased{}, promised{}, pinned{};
    for (const ObjectId id : state.members(unit)) {
        const Object& object = state.objects()[id];
        leased = std::max(leased, object.lease_end);
        promised = std::max(promised, object.promise_end);
        pinned = std::max(pinned, object.soft_pin_end);
    }
    if (leased > now) return {Shelf::kLeased, leased};
    if (pinned > now && !state.options().evict_soft_pinned) return {Shelf::kSoftPinned, pinned};
    if (promised > now) return {Shelf::kPromised, promised};
    if (pinned > now) return {Shelf::kSoftPinned, pinned};
    return {};
}

Hold Evictor::hold(ObjectId unit) const {
    if (protect_ != 0 && state().unit(protect_) == unit) return {Shelf::kLeased, now_};  // comes back when the clock moves
    return hold_of(state(), unit, now_);
}

void Evictor::prefetch_coldest(TenantNumber tenant) {
    constexpr size_t kWindow = 32;
    if (prefetched_ == 0 && expected_ > 1) {
        const EvictionPolicy& policy = state().tenants()[tenant].order.policy();
        std::array<ObjectId, kWindow> coldest;
        const size_t most = std::min(expected_, kWindow);
        for (ObjectId id = policy.coldest(); id != 0 && prefetched_ < most; id = policy.next_coldest(id)) coldest[prefetched_++] = id;
        state().objects().prefetch_erase(std::span(coldest).first(prefetched_));
    }
    if (prefetched_ != 0) {
        --prefetched_;
        --expected_;
    }
}

ObjectId Evictor::next_plain(TenantNumber tenant) {
    prefetch_coldest(tenant);
    for (;;) {
        const ObjectId unit = state().tenants()[tenant].order.policy().coldest();
        if (unit == 0) return 0;
        const Hold held = hold(unit);
        if (held.shelf == Shelf::kNone) return unit;
        if (set_aside_left_-- <= 0) return 0;
        transaction_.apply(SetAside{.object = unit, .shelf = held.shelf, .until = held.until});
    }
}

ObjectId Evictor::next_aside(TenantNumber tenant, Shelf shelf) {
    for (;;) {
        const ObjectId unit = state().tenants()[tenant].order.first_aside(shelf);
        if (unit == 0) return 0;
        const Hold held = hold(unit);
        if (held.shelf == Shelf::kNone || held.shelf == shelf) return unit;
        if (set_aside_left_-- <= 0) return 0;
        transaction_.apply(SetAside{.object = unit, .shelf = held.shelf, .until = held.until});
    }
}

/// one(tenant) for the given tenant, or for all, those first that use most of their share.
template <typename Pick>
ObjectId Evictor::pick(TenantNumber tenant, Pick&& one) {
    const TenantTable& tenants = state().tenants();
    if (tenant != 0) return one(tenant);
    if (!state().options().tenants) return one(TenantTable::kDefault);
    std::vector<std::pair<double, TenantNumber>> by_pressure;
    for (TenantNumber number = 1; number < tenants.limit(); ++number) {
        if (!tenants.exists(number) || tenants[number].order.size() == 0) continue;
        const auto quota = static_cast<double>(tenants[number].effective_quota) + 1;  // without a policy: goes first
        by_pressure.emplace_back(-static_cast<double>(tenants[number].charged_bytes) / quota, number);
    }
    std::sort(by_pressure.begin(), by_pressure.end());
    for (const auto& entry : by_pressure)
        if (const ObjectId unit = one(entry.second); unit != 0) return unit;
    return 0;
}

ObjectId Evictor::next(TenantNumber tenant, Sacrifice most) {
    ObjectId unit = pick(tenant, [this](TenantNumber one) { return next_plain(one); });
    if (unit == 0 && most >= Sacrifice::kSoftPinned && state().options().evict_soft_pinned)
        unit = pick(tenant, [this](TenantNumber one) { return next_aside(one, Shelf::kSoftPinned); });
    if (unit == 0 && most >= Sacrifice::kPromised)
        unit = pick(tenant, [this](TenantNumber one) { return next_aside(one, Shelf::kPromised); });
    return unit;
}

uint64_t Evictor::evict(ObjectId unit) {
    const std::span<const ObjectId> members = state().members(unit);
    uint64_t bytes = 0;
    for (const ObjectId id : members) bytes += state().rounded(state().objects()[id].length) * state().objects()[id].replicas.size();
    transaction_.apply(ObjectsRemoved{.objects = {members.begin(), members.end()}, .cause = RemovalCause::kEvicted, .now = now_});
    return bytes;
}

bool Evictor::usable(SegmentNumber segment, const Wanted& wanted) const {
    const SegmentTable& segments = state().segments();
    if (segments[segment].view_position == UINT32_MAX) return false;
    const SegmentView& view = segments.view().segments[segments[segment].view_position];
    const auto& names = wanted.names_in_use;
    return is_suspect(view, wanted.unreachable) == wanted.suspects && std::find(names.begin(), names.end(), view.name) == names.end();
}

std::optional<SegmentNumber> Evictor::make_room(uint64_t length, const Wanted& wanted, Sacrifice most) {
    const SegmentTable& segments = state().segments();
    const auto view = segments.view().segments;
    const bool possible = std::any_of(view.begin(), view.end(), [&](const SegmentView& one) {
        return one.capacity >= state().rounded(length) && usable(one.segment, wanted);
    });
    if (!possible) return std::nullopt;
    std::vector<SegmentNumber> touched;
    for (uint64_t freed = 0; freed < state().rounded(length);) {
        const ObjectId unit = next(0, most);
        if (unit == 0) return std::nullopt;
        touched.clear();
        for (const ObjectId id : state().members(unit)) {
            const ReplicaList& replicas = state().objects()[id].replicas;
            for (size_t i = 0; i < replicas.size(); ++i) touched.push_back(replicas[i].segment);
        }
        freed += evict(unit);
        for (const SegmentNumber segment : touched)
            if (usable(segment, wanted) && segments[segment].allocator.find(state().rounded(length))) return segment;
    }
    return evict_hole(length, most, [&](SegmentNumber segment) { return usable(segment, wanted); });
}

bool Evictor::may_go(ObjectId unit, Sacrifice most) {
    if (state().objects()[unit].shelf == Shelf::kNone) return false;
    const Hold held = hold(unit);
    if (held.shelf == Shelf::kNone) return true;
    if (held.shelf == Shelf::kSoftPinned && most >= Sacrifice::kSoftPinned && state().options().evict_soft_pinned) return true;
    if (held.shelf == Shelf::kPromised && most >= Sacrifice::kPromised) return true;
    if (held.until > now_) obstacle_end_ = std::min(obstacle_end_, held.until);
    return false;
}

/// The entries to evict so that the range around this replica is long enough; empty if something that must stay is in the way.
std::vector<ObjectId> Evictor::hole_around(const Replica& replica, uint64_t length, Sacrifice most) {
    constexpr size_t kVictimsMax = 1 << 16;
    const RangeAllocator& allocator = state().segments()[replica.segment].allocator;
    std::vector<ObjectId> victims;
    std::unordered_set<ObjectId> chosen;
    uint64_t hole = 0;
    // Returns the next block on that side, or 0 if the hole cannot grow there.
    const auto add = [&](RangeAllocator::Block block, bool right) -> RangeAllocator::Block {
        if (!allocator.is_free(block)) {
            const uint64_t owner = allocator.owner(block);
            if (owner_kind(owner) != OwnerKind::kObject) return 0;
            const ObjectId unit = state().unit(owner_number(owner));
            if (!chosen.contains(unit)) {
                if (!may_go(unit, most) || victims.size() == kVictimsMax) return 0;
                chosen.insert(unit);
                victims.push_back(unit);
            }
        }
        hole += allocator.length(block);
        return right ? allocator.next(block) : allocator.previous(block);
    };
    RangeAllocator::Block left = allocator.previous(replica.block);
    RangeAllocator::Block right = add(replica.block, true);
    while (hole < length && (left != 0 || right != 0)) {
        if (right != 0) right = add(right, true);
        if (hole < length && left != 0) left = add(left, false);
    }
    if (hole < length) victims.clear();
    return victims;
}

bool Evictor::make_room_on(SegmentNumber segment, uint64_t length, Sacrifice most) {
    const bool open = state().segments()[segment].view_position != UINT32_MAX;
    return open && evict_hole(length, most, [segment](SegmentNumber other) { return other == segment; }).has_value();
}

std::optional<SegmentNumber> Evictor::evict_hole(uint64_t length, Sacrifice most, const std::function<bool(SegmentNumber)>& usable) {
    constexpr int kTries = 1024;
    const ObjectId coldest = next(0, most);
    if (coldest == 0) return std::nullopt;
    const auto& order = state().tenants()[state().objects()[coldest].tenant].order;
    int tries = kTries;
    // Whatever stands in the way of one may not stand in the way of another, also where all of them are only set aside.
    for (const Shelf shelf : {Shelf::kOrder, Shelf::kSoftPinned, Shelf::kPromised}) {
        ObjectId unit = shelf == Shelf::kOrder ? order.policy().coldest() : order.first_aside(shelf);
        while (unit != 0 && tries-- > 0) {
            if (const auto segment = may_go(unit, most) ? evict_hole_at(unit, length, most, usable) : std::nullopt) return segment;
            unit = shelf == Shelf::kOrder ? order.policy().next_coldest(unit) : state().objects()[unit].order.next;
        }
    }
    return std::nullopt;
}

std::optional<SegmentNumber> Evictor::evict_hole_at(ObjectId unit, uint64_t length, Sacrifice most,
                                                    const std::function<bool(SegmentNumber)>& usable) {
    for (const ObjectId id : state().members(unit)) {
        const ReplicaList& replicas = state().objects()[id].replicas;
        for (size_t i = 0; i < replicas.size(); ++i) {
            const SegmentNumber segment = replicas[i].segment;
            if (!usable(segment)) continue;
            const std::vector<ObjectId> victims = hole_around(replicas[i], state().rounded(length), most);
            if (victims.empty()) continue;
            for (const ObjectId victim : victims) evict(victim);
            if (state().segments()[segment].allocator.find(state().rounded(length))) return segment;
            return std::nullopt;
        }
    }
    return std::nullopt;
}

void Evictor::condemn_leased(uint64_t length) {
    while (state().quarantine().bytes() < state().rounded(length)) {
        const ObjectId unit = pick(0, [this](TenantNumber one) {
            const ObjectId first = state().tenants()[one].order.first_aside(Shelf::kLeased);
            return first != 0 && protect_ != 0 && first == state().unit(protect_) ? 0 : first;
        });
        if (unit == 0) return;
        evict(unit);
    }
}

}  // namespace mooncake::store
