// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/time.h"
#include "store/allocation/slab.h"
#include "store/allocation/slot_index.h"
#include "store/master/object.h"

namespace mooncake::store {

/// When the last of the leases, soft leases or soft pins on the members of a group is over. Found by looking at all of them only when it is
/// asked for and a member that may have been the last one has lost its own.
struct GroupHold {
    void raise(Time end) { latest = latest > end ? latest : end; }
    void lower(Time from) { stale |= from == latest && from != Time{}; }

    mutable Time latest{};  // or earlier, while stale
    mutable bool stale = false;
};

/// Objects that are worth something only together. The first member stands for the group in the eviction order.
struct Group {
    std::string name;
    TenantNumber tenant = 0;
    std::vector<ObjectId> members;
    uint32_t writing = 0;               // members that have no value yet
    uint32_t blocked = 0;               // members with Object::blocked
    uint32_t in_memory = 0, dirty = 0;  // members with Object::in_memory; those of them that are on no disk
    uint64_t bytes = 0;                 // of all values, rounded, each counted once
    GroupHold leased, soft_leased, soft_pinned;
};

/// The groups by (tenant, name) and by number. Not thread-safe.
class GroupTable {
public:
    GroupId find(TenantNumber tenant, std::string_view name) const;
    GroupId insert(TenantNumber tenant, std::string_view name);  // must not be there
    void erase(GroupId id);

    Group& operator[](GroupId id) { return groups_[id]; }
    const Group& operator[](GroupId id) const { return groups_[id]; }
    size_t size() const noexcept { return groups_.size(); }
    GroupId limit() const noexcept { return groups_.limit(); }

private:
    static uint64_t hash(TenantNumber tenant, std::string_view name);

    Slab<Group, 128> groups_;
    SlotIndex<4> index_;
};

}  // namespace mooncake::store
