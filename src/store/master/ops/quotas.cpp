// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "store/master/ops/task_ops.h"

namespace mooncake::store {

namespace {

StoreCode check_name(const MasterState& state, std::string_view tenant) {
    if (!state.options().tenants) return StoreCode::kUnavailableInCurrentMode;
    const bool control = std::any_of(tenant.begin(), tenant.end(),
                                     [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
    return tenant.empty() || tenant.front() == '_' || control ? StoreCode::kInvalidParams : StoreCode::kOk;
}

}  // namespace

StoreCode set_quota(Transaction& transaction, std::string_view tenant, uint64_t bytes) {
    const StoreCode code = check_name(transaction.state(), tenant);
    if (code == StoreCode::kOk) transaction.apply(QuotaSet{.tenant = std::string(tenant), .bytes = bytes});
    return code;
}

StoreCode delete_quota(Transaction& transaction, std::string_view tenant) {
    const MasterState& state = transaction.state();
    if (const StoreCode code = check_name(state, tenant); code != StoreCode::kOk) return code;
    const TenantNumber number = state.tenants().find(tenant);
    if (number == 0 || !state.tenants()[number].requested_quota) return StoreCode::kTenantNotRegistered;
    if (state.tenants()[number].objects != 0) return StoreCode::kTenantNotEmpty;
    transaction.apply(QuotaSet{.tenant = std::string(tenant), .bytes = std::nullopt});
    return StoreCode::kOk;
}

std::vector<TenantQuota> list_quotas(const MasterState& state) {
    std::vector<TenantQuota> quotas;
    for (TenantNumber number = 1; number < state.tenants().limit(); ++number) {
        if (!state.tenants().exists(number)) continue;
        const Tenant& tenant = state.tenants()[number];
        if (!tenant.requested_quota && tenant.objects == 0) continue;  // the default one, unused
        quotas.push_back({.tenant = tenant.name,
                          .requested_bytes = tenant.requested_quota.value_or(0),
                          .effective_bytes = tenant.effective_quota,
                          .charged_bytes = tenant.charged_bytes,
                          .admission_closed = !tenant.requested_quota || tenant.effective_quota == 0,
                          .over_quota = tenant.charged_bytes > tenant.effective_quota,
                          .explicit_policy = tenant.requested_quota.has_value()});
    }
    std::sort(quotas.begin(), quotas.end(), [](const TenantQuota& a, const TenantQuota& b) { return a.tenant < b.tenant; });
    return quotas;
}

}  // namespace mooncake::store
