// SPDX-License-Identifier: Apache-2.0
#include "store/admin/admin_views.h"

#include <algorithm>

#include "store/master/ops/object_ops.h"
#include "store/master/ops/task_ops.h"

namespace mooncake::store {

namespace {

constexpr ObjectId kObjectsPerPart = 1024;  // well below a millisecond
constexpr size_t kLinesBytes = 64 * 1024;   // keys may be long

void add_places(const MasterState& state, const Object& object, ObjectView& view) {
    for (size_t i = 0; i < object.replicas.size(); ++i) {
        const Segment& segment = state.segments()[object.replicas[i].segment];
        const SegmentSpec& spec = segment.spec;
        if (segment.is_disk()) view.on_disks.push_back({.length = object.length, .protocol = spec.protocol, .endpoint = spec.service});
        else
            view.places.push_back({.length = object.length,
                                   .address = spec.base + object.replicas[i].offset,
                                   .protocol = spec.protocol,
                                   .endpoint = spec.name});
    }
}

void add_tiers(const MasterState& state, PoolView& view) {
    const TierTable& tiers = state.tiers();
    view.disk_capacity_bytes = state.segments().disk_capacity();
    view.disk_used_bytes = state.segments().disk_used_bytes();
    view.disks = state.segments().disks();
    view.values_on_disk = tiers.on_disk_values;
    view.values_in_memory = state.values() - tiers.disk_only_values;
    view.tiers = tiers.totals;
    for (const auto& [client, node] : tiers.nodes) {
        view.offloads_waiting += node.offloads.size();
        view.promotions_waiting += node.promotions.size();
        view.tier_bytes_under_way += node.under_way;
    }
    const auto under_way = [](const TierTotals::Copies& copies) {
        return copies.started - copies.ended - copies.failed - copies.cancelled - copies.expired;
    };
    view.offloads_under_way = under_way(tiers.totals.offloads);
    view.promotions_under_way = under_way(tiers.totals.promotions);
}

/// 0: all tenants. Fails if there is no such tenant.
tl::expected<TenantNumber, StoreCode> tenant_number(const LockedMaster& master, std::optional<std::string_view> tenant) {
    if (!tenant) return TenantNumber{0};
    const TenantNumber number = master.look([&](const MasterState& state, Time) { return state.tenant(*tenant); });
    if (number == 0) return tl::unexpected(StoreCode::kTenantNotRegistered);
    return number;
}

}  // namespace

PoolView view_pool(const LockedMaster& master) {
    return master.look([](const MasterState& state, Time now) {
        PoolView view{.capacity_bytes = state.segments().capacity(),
                      .used_bytes = state.segments().used_bytes(),
                      .quarantined_bytes = state.quarantine().bytes(),
                      .keys = state.objects().size(),
                      .values = state.values(),
                      .writes = state.write_count(),
                      .clients = 0,
                      .segments = state.segments().size(),
                      .soft_pinned = state.soft_pinned(now),
                      .totals = state.totals()};
        for (ClientNumber number = 1; number < state.clients().limit(); ++number)
            if (state.clients().alive(number)) ++view.clients;
        add_tiers(state, view);
        return view;
    });
}

std::vector<SegmentDetail> view_segments(const LockedMaster& master, std::optional<std::string_view> name) {
    return master.look([&](const MasterState& state, Time now) {
        const SegmentTable& segments = state.segments();
        std::vector<SegmentDetail> rows;
        const auto add = [&](SegmentNumber number) {
            const Segment& segment = segments[number];
            rows.push_back({.spec = segment.spec,
                            .client = state.clients()[segment.client].id,
                            .status = segment.status,
                            .used_bytes = segment.allocator.used_bytes(),
                            .capacity_bytes = segment.allocator.capacity(),
                            .suspect = segment.stream_down || segment.suspect_until > now || segment.heard_until <= now});
        };
        for (const SegmentNumber number : name ? segments.find_name(*name) : segments.numbers()) add(number);
        return rows;
    });
}

std::vector<ClientView> view_clients(const LockedMaster& master) {
    return master.look([](const MasterState& state, Time now) {
        std::vector<ClientView> rows;
        for (ClientNumber number = 1; number < state.clients().limit(); ++number) {
            if (!state.clients().alive(number)) continue;
            const Client& client = state.clients()[number];
            ClientView& row = rows.emplace_back();
            row.id = client.id;
            row.segments = client.segments.size();
            row.expires_in = std::max(client.expires - now, Duration::zero());
            for (const SegmentNumber segment : client.segments)
                if (!state.segments().is_disk(segment)) row.lent_bytes += state.segments()[segment].spec.size;
        }
        return rows;
    });
}

std::vector<TenantView> view_tenants(const LockedMaster& master) {
    return master.look([](const MasterState& state, Time) {
        std::vector<TenantView> rows;
        for (TenantQuota& quota : list_quotas(state)) {
            const uint64_t evicted = state.tenants()[state.tenants().find(quota.tenant)].evicted_bytes;
            rows.push_back({.quota = std::move(quota), .evicted_bytes = evicted});
        }
        return rows;
    });
}

ObjectView lease_object(LockedMaster& master, std::string_view tenant, std::string_view key) {
    return master.run([&](Transaction& transaction, Time now) {
        const GetReply reply = get_replicas(transaction, {.tenant = tenant, .keys = {&key, 1}}, now);
        ObjectView view{.code = reply.items[0].code, .places = {}, .on_disks = {}};
        if (view.code != StoreCode::kOk) return view;
        const MasterState& state = transaction.state();
        add_places(state, state.objects()[state.objects().find(state.tenant(tenant), key)], view);
        return view;
    });
}

std::vector<ObjectView> view_objects(const LockedMaster& master, std::string_view tenant, const std::vector<std::string>& keys) {
    std::vector<ObjectView> views(keys.size());
    for (size_t begin = 0; begin < keys.size(); begin += kObjectsPerPart) {
        master.look([&](const MasterState& state, Time) {
            const TenantNumber number = state.tenant(tenant);
            for (size_t i = begin; i < std::min(keys.size(), begin + kObjectsPerPart); ++i) {
                const ObjectId id = number == 0 || keys[i].empty() ? 0 : state.objects().find(number, keys[i]);
                if (id == 0) views[i].code = too_long(keys[i]) ? StoreCode::kInvalidParams : StoreCode::kObjectNotFound;
                else if (!state.readable(state.objects()[id])) views[i].code = StoreCode::kReplicaIsNotReady;
                else add_places(state, state.objects()[id], views[i]);
            }
            return true;
        });
    }
    return views;
}

tl::expected<KeyWalk, StoreCode> KeyWalk::begin(const LockedMaster& master, std::optional<std::string_view> tenant) {
    const auto number = tenant_number(master, tenant);
    if (!number) return tl::unexpected(number.error());
    return KeyWalk(master, *number, master.look([](const MasterState& state, Time) { return state.objects().limit(); }));
}

std::string KeyWalk::next_lines() {
    std::string lines;
    while (lines.empty() && next_ < end_) {
        master_->look([&](const MasterState& state, Time) {
            const ObjectTable& objects = state.objects();
            const ObjectId end = std::min(end_, next_ + kObjectsPerPart);
            for (; next_ < end && lines.size() < kLinesBytes; ++next_) {
                if (!objects.exists(next_) || !objects[next_].has_value()) continue;
                if (tenant_ != 0 && objects[next_].tenant != tenant_) continue;
                lines += objects[next_].key();
                lines += '\n';
            }
            return true;
        });
    }
    return lines;
}

}  // namespace mooncake::store
