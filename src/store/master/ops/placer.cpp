// SPDX-License-Identifier: Apache-2.0
#include "store/master/ops/placer.h"

#include <algorithm>

namespace mooncake::store {

namespace {

/// Each name takes one replica; a suspect gets none but the first.
uint32_t count_names(std::span<const SegmentView> view, std::span<const uint32_t> unreachable) {
    uint32_t count = 0, last = UINT32_MAX;
    for (const SegmentView& segment : view) {  // those of one name stand together
        if (segment.name == last || is_suspect(segment, unreachable)) continue;
        last = segment.name;
        ++count;
    }
    return count;
}

}  // namespace

Placer::Placer(Transaction& transaction, const WriteConfig& config, std::span<const uint32_t> unreachable, Time now)
    : transaction_(transaction), config_(config), unreachable_(unreachable), now_(now), evictor_(transaction, now) {
    const SegmentTable& segments = state().segments();
    for (const std::string& name : config.preferred_segments)
        for (const SegmentNumber number : segments.find_name(name))
            if (segments[number].view_position != UINT32_MAX) preferred_.push_back(segments[number].view_position);
    if (config.replica_num > 1)
        replicas_max_ = std::clamp<uint32_t>(count_names(segments.view().segments, unreachable), 1, config.replica_num);
    if (config.replica_num == 1 && !config.writer_host.empty()) host_ = segments.host_number(config.writer_host);
}

uint32_t Placer::affordable(const Wanted& wanted) {
    if (!state().options().tenants) return replicas_max_;
    const Tenant& tenant = state().tenants()[wanted.tenant];
    const uint64_t each = state().rounded(wanted.length);
    const auto room = [&] { return tenant.effective_quota > tenant.charged_bytes ? tenant.effective_quota - tenant.charged_bytes : 0; };
    if (each > tenant.effective_quota) return 0;
    const uint64_t needed = each * std::min<uint64_t>(replicas_max_, tenant.effective_quota / each);
    while (room() < needed) {
        const ObjectId unit = evictor_.next(wanted.tenant, room() < each ? Sacrifice::kSoftLeased : Sacrifice::kSoftPinned);
        if (unit == 0) break;
        evictor_.evict(unit);
    }
    return static_cast<uint32_t>(std::min<uint64_t>(replicas_max_, room() / each));
}

/// A suspect is better than a refusal, but one replica less is better than a suspect.
SegmentNumber Placer::choose(const Wanted& wanted, Random& random) {
    const SegmentNumber segment = choose_among(wanted, random, /*suspects=*/false);
    return segment != 0 || !names_in_use_.empty() ? segment : choose_among(wanted, random, /*suspects=*/true);
}

SegmentNumber Placer::choose_among(const Wanted& wanted, Random& random, bool suspects) {
    const SegmentTable& segments = state().segments();
    const PlacementWish wish{.strategy = config_.replica_num == 1 ? state().options().placement : PlacementStrategy::kRandom,
                             .length = state().rounded(wanted.length),
                             .preferred = preferred_,
                             .names_in_use = names_in_use_,
                             .unreachable = unreachable_,
                             .host = host_,
                             .key_hash = wanted.key_hash,
                             .suspects = suspects};
    const auto fits = [&](const SegmentView& view) {
        return segments[view.segment].allocator.find(state().rounded(wanted.length)).has_value();
    };
    if (const auto position = choose_segment(segments.view(), wish, random, fits)) return segments.view().segments[*position].segment;
    // Only the first replica is worth a broken soft lease.
    const Sacrifice most = names_in_use_.empty() ? Sacrifice::kSoftLeased : Sacrifice::kSoftPinned;
    return evictor_.make_room(wanted.length, {names_in_use_, unreachable_, suspects}, most).value_or(0);
}

Placer::Placed Placer::place(const Wanted& wanted) {
    const SegmentTable& segments = state().segments();
    if (wanted.length > segments.largest_writable() || state().rounded(wanted.length) > segments.largest_writable())
        return {.code = StoreCode::kNoAvailableHandle};
    evictor_.restart(wanted.keep);
    const uint32_t replicas = affordable(wanted);
    if (replicas == 0) return {.code = StoreCode::kTenantQuotaExceeded};

    Random random(wanted.key_hash ^ state().next_generation());
    names_in_use_.clear();
    Placed placed;
    for (uint32_t i = 0; i < replicas; ++i) {
        const SegmentNumber segment = choose(wanted, random);
        if (segment == 0) break;
        names_in_use_.push_back(segments[segment].name_number);
        placed.replicas.push_back({.segment = segment});
    }
    if (placed.replicas.empty()) {
        evictor_.condemn_leased(wanted.length);
        return {.code = StoreCode::kNoAvailableHandle};
    }
    // Only now: evicting for one replica may have merged the free block found for another.
    std::erase_if(placed.replicas, [&](ReplicaLocation& replica) {
        const auto offset = evictor_.find_room(replica.segment, state().rounded(wanted.length));
        replica.offset = offset.value_or(0);
        return !offset;
    });
    if (placed.replicas.empty()) placed.code = StoreCode::kNoAvailableHandle;
    return placed;
}

Duration Placer::disk_wait(uint64_t length) const {
    if (!state().offloads() || state().options().offload_force_evict || length > state().segments().largest_writable()) return {};
    const Duration wait = state().disk_wait(state().rounded(length));
    return wait == Duration::max() ? Duration::zero() : wait;
}

Duration Placer::retry_after(uint64_t length) {
    const SegmentTable& segments = state().segments();
    if (!largest_possible_) {  // the same for all of a batch that are refused
        largest_possible_ = 0;
        for (const SegmentNumber number : segments.numbers()) {
            if (segments.is_disk(number)) continue;
            reporting_ |= segments[number].reporting;
            if (segments[number].status == SegmentStatus::kOk)
                largest_possible_ = std::max(*largest_possible_, segments[number].allocator.capacity());
        }
    }
    if (length > *largest_possible_ || state().rounded(length) > *largest_possible_) return Duration::zero();
    if (reporting_) return 100ms;
    const Time at = std::min(
        {state().quarantine().time_for(state().rounded(length)), state().next_return(), segments.next_opening(), evictor_.obstacle_end()});
    if (const Duration disk = disk_wait(length); disk != Duration::zero())
        return std::min<Duration>(disk, at == Time::max() ? disk : std::max<Duration>(at - now_, 1ms));
    // What a value has that was replaced comes back as soon as that was told.
    if (at == Time::max()) return state().quarantine().any_replaced() ? 5ms : Duration::zero();
    return std::max<Duration>(at - now_, 1ms);
}

}  // namespace mooncake::store
