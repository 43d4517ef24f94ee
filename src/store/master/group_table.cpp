// SPDX-License-Identifier: Apache-2.0
#include "store/master/group_table.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace mooncake::store {

uint64_t GroupTable::hash(TenantNumber tenant, std::string_view name) { return XXH3_64bits_withSeed(name.data(), name.size(), tenant); }

GroupId GroupTable::find(TenantNumber tenant, std::string_view name) const {
    return index_.find(hash(tenant, name), [&](GroupId id) { return groups_[id].tenant == tenant && groups_[id].name == name; });
}

GroupId GroupTable::insert(TenantNumber tenant, std::string_view name) {
    const GroupId id = groups_.take();
    groups_[id].name = name;
    groups_[id].tenant = tenant;
    index_.insert(hash(tenant, name), id);
    return id;
}

void GroupTable::erase(GroupId id) {
    index_.erase(hash(groups_[id].tenant, groups_[id].name), id);
    groups_.give_back(id);
}

}  // namespace mooncake::store
