// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "store/protocol/segments.h"
#include "store/protocol/tasks.h"
#include "store/service/locked_master.h"

/// What administration and metrics want to know of the state, copied out of it, so that texts are made without the lock. Each call holds it
/// for a bounded time.
namespace mooncake::store {

struct PoolView {
    uint64_t capacity_bytes = 0, used_bytes = 0;  // used: with what is in quarantine
    uint64_t quarantined_bytes = 0;
    uint64_t disk_capacity_bytes = 0, disk_used_bytes = 0;  // the others are of memory
    size_t disks = 0, values_on_disk = 0, values_in_memory = 0;
    size_t offloads_waiting = 0, offloads_under_way = 0, promotions_waiting = 0, promotions_under_way = 0;
    uint64_t tier_bytes_under_way = 0;
    TierTotals tiers;
    size_t keys = 0, values = 0, writes = 0, clients = 0, segments = 0;  // keys: with those being written
    uint64_t soft_pinned = 0;                                            // keys
    StateTotals totals;
};
PoolView view_pool(const LockedMaster& master);

struct SegmentDetail {
    SegmentSpec spec;
    ClientId client;
    SegmentStatus status = SegmentStatus::kUndefined;
    uint64_t used_bytes = 0, capacity_bytes = 0;
    bool suspect = false;  // its data path was reported failing, or its owner does not listen
};
/// All mounted ones, or those of one name, oldest first.
std::vector<SegmentDetail> view_segments(const LockedMaster& master, std::optional<std::string_view> name = {});

struct ClientView {
    ClientId id;
    size_t segments = 0;
    uint64_t lent_bytes = 0;
    Duration expires_in{0};
};
std::vector<ClientView> view_clients(const LockedMaster& master);

struct TenantView {
    TenantQuota quota;
    uint64_t evicted_bytes = 0;
};
std::vector<TenantView> view_tenants(const LockedMaster& master);

/// Where a value lies, as the master's users see it.
struct PlaceView {
    uint64_t length = 0, address = 0;
    std::string protocol, endpoint;
};
struct ObjectView {
    StoreCode code = StoreCode::kOk;
    std::vector<PlaceView> places;
    std::vector<PlaceView> on_disks;  // where their nodes answer for them
};
/// Grants a lease, as a client's read does.
ObjectView lease_object(LockedMaster& master, std::string_view tenant, std::string_view key);
/// Only looks; answers in the order of the keys.
std::vector<ObjectView> view_objects(const LockedMaster& master, std::string_view tenant, const std::vector<std::string>& keys);

/// Goes through the keys that have a value, of one tenant or of all, some at a time. A key that is there all the while is met once; what comes
/// and goes meanwhile is met or not. Borrows the master. Not thread-safe.
class KeyWalk {
public:
    /// kTenantNotRegistered where there is no such tenant.
    static tl::expected<KeyWalk, StoreCode> begin(const LockedMaster& master, std::optional<std::string_view> tenant);
    /// The next keys, each with a line end behind it; empty when there are no more.
    std::string next_lines();

private:
    KeyWalk(const LockedMaster& master, TenantNumber tenant, ObjectId end) : master_(&master), tenant_(tenant), end_(end) {}

    const LockedMaster* master_;
    TenantNumber tenant_;  // 0: all
    ObjectId next_ = 1;
    ObjectId end_;  // of the objects that there were at the beginning: the walk ends however fast others put
};

}  // namespace mooncake::store
