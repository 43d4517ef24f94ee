// SPDX-License-Identifier: Apache-2.0
#include "store/master/tenant_table.h"

#include <algorithm>

namespace mooncake::store {

TenantNumber TenantTable::find_or_insert(std::string_view name) {
    if (const TenantNumber found = find(name); found != 0) return found;
    auto number = static_cast<TenantNumber>(tenants_.size());
    if (free_.empty()) {
        tenants_.emplace_back();
    } else {
        number = free_.back();
        free_.pop_back();
    }
    tenants_[number] = std::make_unique<Tenant>(std::string(name), hash(name), objects_, looks_ahead_);
    by_name_.emplace(name, number);
    return number;
}

void TenantTable::set_quota(TenantNumber number, std::optional<uint64_t> bytes, uint64_t capacity) {
    tenants_[number]->requested_quota = bytes;
    share_out(capacity);
}

void TenantTable::share_out(uint64_t capacity) {
    shared_out_ = capacity;
    std::vector<Tenant*> tenants;
    unsigned __int128 requested = 0;
    for (const auto& tenant : tenants_) {
        if (!tenant) continue;
        tenants.push_back(tenant.get());
        requested += tenant->requested_quota.value_or(0);
    }
    if (requested <= capacity) {
        for (Tenant* tenant : tenants) tenant->effective_quota = tenant->requested_quota.value_or(0);
        return;
    }
    std::sort(tenants.begin(), tenants.end(), [](const Tenant* a, const Tenant* b) { return a->name < b->name; });
    uint64_t remaining = capacity;
    for (Tenant* tenant : tenants) {
        tenant->effective_quota = static_cast<uint64_t>(static_cast<unsigned __int128>(tenant->requested_quota.value_or(0)) * capacity /
                                                        requested);
        remaining -= tenant->effective_quota;
    }
    for (Tenant* tenant : tenants) {
        if (remaining == 0) break;
        if (tenant->requested_quota.value_or(0) > tenant->effective_quota) ++tenant->effective_quota, --remaining;
    }
}

void TenantTable::drop_if_unused(TenantNumber number) {
    const Tenant& tenant = *tenants_[number];
    if (number == kDefault || tenant.requested_quota || tenant.objects != 0) return;
    by_name_.erase(tenant.name);
    tenants_[number].reset();
    free_.push_back(number);
}

}  // namespace mooncake::store
