// SPDX-License-Identifier: Apache-2.0
#include "store/master/ops/evictor.h"

#include <algorithm>
#include <array>

namespace mooncake::store {

size_t Evictor::together(uint64_t length) const {
    const uint64_t fit = state().segments().capacity() / kTogetherShare / std::max<uint64_t>(state().rounded(length), 1);
    return std::clamp<size_t>(std::min<uint64_t>(expected_, fit), 1, kTogetherMax);
}

void Evictor::prefetch_coldest(const EvictionPolicy& policy, size_t size_class, size_t count) const {
    if (count < 2) return;
    std::array<ObjectId, kTogetherMax> coldest;
    size_t found = 0;
    for (ObjectId id = policy.coldest(size_class); id != 0 && found < count; id = policy.next_coldest(id)) coldest[found++] = id;
    state().objects().prefetch_erase(std::span(coldest).first(found));
}

bool Evictor::set_aside(ObjectId unit, const Hold& held) {
    int& left = held.shelf == Shelf::kDirty ? dirty_left_ : set_aside_left_;
    if (left-- <= 0) return false;
    transaction_.apply(SetAside{.object = unit, .shelf = held.shelf, .until = held.until});
    return true;
}

ObjectId Evictor::next_plain(TenantNumber tenant, size_t size_class) {
    for (;;) {
        const ObjectId unit = state().tenants()[tenant].order.policy().coldest(size_class);
        if (unit == 0) return 0;
        const Hold held = holes_.hold(unit);
        if (held.shelf == Shelf::kNone) return unit;
        if (!set_aside(unit, held)) return 0;
    }
}

ObjectId Evictor::next_plain(TenantNumber tenant) {
    const EvictionPolicy& policy = state().tenants()[tenant].order.policy();
    ObjectId coldest = 0;
    for (size_t c = 0; c < EvictionPolicy::kClasses; ++c) {
        const ObjectId unit = next_plain(tenant, c);
        if (unit != 0 && (coldest == 0 || policy.age(unit) > policy.age(coldest))) coldest = unit;
    }
    return coldest;
}

ObjectId Evictor::next_aside(TenantNumber tenant, Shelf shelf) {
    for (;;) {
        const ObjectId unit = state().tenants()[tenant].order.first_aside(shelf);
        if (unit == 0) return 0;
        const Hold held = holes_.hold(unit);
        if (held.shelf == Shelf::kNone || held.shelf == shelf) return unit;
        if (!set_aside(unit, held)) return 0;
    }
}

/// one(tenant) for the given tenant, or for all, those first that use most of their share.
template <typename Pick>
auto Evictor::pick(TenantNumber tenant, Pick&& one) -> decltype(one(tenant)) {
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
        if (const auto found = one(entry.second); found != 0) return found;
    return 0;
}

ObjectId Evictor::next(TenantNumber tenant, Sacrifice most) {
    ObjectId unit = pick(tenant, [this](TenantNumber one) { return next_plain(one); });
    if (unit == 0 && most >= Sacrifice::kSoftPinned && state().options().evict_soft_pinned)
        unit = pick(tenant, [this](TenantNumber one) { return next_aside(one, Shelf::kSoftPinned); });
    if (unit == 0 && most >= Sacrifice::kSoftLeased)
        unit = pick(tenant, [this](TenantNumber one) { return next_aside(one, Shelf::kSoftLeased); });
    return unit;
}

uint64_t Evictor::evict(ObjectId unit) {
    const std::span<const ObjectId> members = state().members(unit);
    uint64_t bytes = 0;
    for (const ObjectId id : members)
        bytes += state().rounded(state().objects()[id].length) * state().memory_replicas(state().objects()[id].replicas);
    if (state().is_clean(unit)) transaction_.apply(MemoryReleased{.objects = {members.begin(), members.end()}, .now = now_});
    else transaction_.apply(ObjectsRemoved{.objects = {members.begin(), members.end()}, .cause = RemovalCause::kEvicted, .now = now_});
    return bytes;
}

std::optional<SegmentNumber> Evictor::make_room(uint64_t length, const RoomWanted& wanted, Sacrifice most) {
    const auto view = state().segments().view().segments;
    const bool possible = std::any_of(view.begin(), view.end(), [&](const SegmentView& one) {
        return one.capacity >= state().rounded(length) && is_wanted(state(), one.segment, wanted);
    });
    if (!possible) return std::nullopt;
    SegmentNumber segment = 0;
    for (const Sacrifice level : {Sacrifice::kPlain, Sacrifice::kSoftPinned, Sacrifice::kSoftLeased}) {
        int searches = kSearchesMax;
        if (segment != 0 || level > most) break;
        if (level == Sacrifice::kSoftPinned && !(state().options().evict_soft_pinned && state().any_soft_pinned(now_))) continue;
        segment = pick(0, [&](TenantNumber one) {
            const SegmentNumber cold = evict_one(one, length, wanted, level);
            return cold == 0 && searches-- > 0 ? evict_hole(one, length, wanted, level) : cold;
        });
    }
    if (segment == 0) set_dirty_aside();
    return segment == 0 ? std::nullopt : std::optional(segment);
}

void Evictor::set_dirty_aside() {
    for (const ObjectId unit : holes_.take_dirty()) {
        if (!state().objects().exists(unit)) continue;
        const Shelf shelf = state().objects()[unit].shelf;
        if (shelf == Shelf::kNone || shelf == Shelf::kDirty || !state().waits_for_disk(unit)) continue;
        if (!set_aside(unit, {Shelf::kDirty, Time::max()})) return;
    }
}

SegmentNumber Evictor::evict_one(TenantNumber tenant, uint64_t length, const RoomWanted& wanted, Sacrifice most) {
    if (for_drain_) return 0;  // what the drain keeps may be the coldest of all: to walk past it costs too much
    return most == Sacrifice::kPlain ? evict_cold(tenant, length, wanted) : evict_aside(tenant, length, wanted, most);
}

SegmentNumber Evictor::evict_cold(TenantNumber tenant, uint64_t length, const RoomWanted& wanted) {
    const EvictionPolicy& policy = state().tenants()[tenant].order.policy();
    const uint64_t capacity = state().segments().capacity();
    const size_t own = EvictionPolicy::class_of(length);
    prefetch_coldest(policy, own, together(length));
    std::array<ObjectId, EvictionPolicy::kClasses> coldest{};
    for (uint64_t freed = 0;;) {
        ObjectId coldest_of_all = 0;
        for (size_t c = 0; c < coldest.size(); ++c)
            if ((coldest[c] = next_plain(tenant, c)) != 0)
                if (coldest_of_all == 0 || policy.age(coldest[c]) > policy.age(coldest_of_all)) coldest_of_all = coldest[c];
        if (coldest_of_all == 0) return 0;
        const uint64_t greatest_age = policy.age(coldest_of_all);
        for (size_t c = own; c < coldest.size(); ++c)
            if (const SegmentNumber segment = evict_long_enough(coldest[c], length, wanted, std::min(greatest_age, capacity) / 4 * 3);
                segment != 0)
                return segment;
        // What nobody found a use for while the pool was written to more than once has no neighbours that could go with it.
        if (greatest_age <= capacity / 2 * 3 || freed >= length) return 0;
        freed += evict(coldest_of_all);
    }
}

SegmentNumber Evictor::evict_long_enough(ObjectId first, uint64_t length, const RoomWanted& wanted, uint64_t cold) {
    if (first == 0) return 0;
    const EvictionPolicy& policy = state().tenants()[state().objects()[first].tenant].order.policy();
    SegmentNumber found = 0;
    size_t left = together(length);
    int tries = kLongEnoughTries;  // those of its own class may be shorter
    for (ObjectId unit = first; unit != 0 && left != 0 && policy.age(unit) >= cold;) {
        const ObjectId next = policy.next_coldest(unit);
        const Replica place = holes_.hold(unit).shelf == Shelf::kNone ? long_enough(unit, length, wanted) : Replica{};
        if (place.segment != 0) {
            if (found == 0) made_.push_back({place.segment, place.offset});
            evict(unit);
            --left;
            if (found == 0) found = place.segment;
        } else if (found != 0 || --tries == 0) {
            break;
        }
        unit = next;
    }
    return found;
}

SegmentNumber Evictor::evict_aside(TenantNumber tenant, uint64_t length, const RoomWanted& wanted, Sacrifice most) {
    const ObjectId unit = next_aside(tenant, most == Sacrifice::kSoftPinned ? Shelf::kSoftPinned : Shelf::kSoftLeased);
    const Replica place = unit != 0 ? long_enough(unit, length, wanted) : Replica{};
    if (place.segment == 0) return 0;
    made_.push_back({place.segment, place.offset});
    evict(unit);
    return place.segment;
}

Replica Evictor::long_enough(ObjectId unit, uint64_t length, const RoomWanted& wanted) const {
    const ReplicaList& replicas = state().objects()[unit].replicas;
    for (size_t i = 0; i < replicas.size(); ++i) {
        const RangeAllocator& allocator = state().segments()[replicas[i].segment].allocator;
        if (allocator.length(replicas[i].block) >= state().rounded(length) && is_wanted(state(), replicas[i].segment, wanted))
            return replicas[i];
    }
    return {};
}

SegmentNumber Evictor::evict_hole(TenantNumber tenant, uint64_t length, const RoomWanted& wanted, Sacrifice most) {
    const HoleFinder::Hole hole = holes_.find(tenant, length, wanted, most);
    if (hole.segment != 0) made_.push_back({hole.segment, hole.offset});
    for (const ObjectId victim : hole.victims) evict(victim);
    return hole.segment;
}

std::optional<uint64_t> Evictor::find_room(SegmentNumber segment, uint64_t bytes) const {
    const RangeAllocator& allocator = state().segments()[segment].allocator;
    if (const auto found = allocator.find(bytes)) return found;
    for (const ReplicaLocation& made : made_)
        if (made.segment == segment && allocator.can_take(made.offset, bytes)) return made.offset;
    return std::nullopt;
}

void Evictor::condemn_leased(uint64_t length) {
    if (next(0, Sacrifice::kSoftLeased) != 0) return;
    while (state().quarantine().bytes() < state().rounded(length)) {
        const ObjectId unit = pick(0, [this](TenantNumber one) {
            const ObjectId first = state().tenants()[one].order.first_aside(Shelf::kLeased);
            if (first == 0 || (protect_ != 0 && first == state().unit(protect_))) return ObjectId{0};
            return state().waits_for_disk(first) ? 0 : first;
        });
        if (unit == 0) return;
        evict(unit);
    }
}

}  // namespace mooncake::store
