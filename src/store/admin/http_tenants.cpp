// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"
#include "store/admin/config_quotas.h"
#include "store/admin/http_admin.h"
#include "store/admin/http_json.h"
#include "store/master/ops/task_ops.h"
#include "store/service/tenant_name.h"

namespace mooncake::store {

namespace {

Json quota_json(const TenantQuota& quota) {
    return {{"tenant_id", quota.tenant},
            {"requested_quota_bytes", quota.requested_bytes},
            {"effective_quota_bytes", quota.effective_bytes},
            {"charged_bytes", quota.charged_bytes},
            {"admission_closed", quota.admission_closed},
            {"over_quota", quota.over_quota},
            {"has_explicit_policy", quota.explicit_policy}};
}

bool tenants_on(const LockedMaster& master) {
    return master.look([](const MasterState& state, Time) { return state.options().tenants; });
}

std::vector<TenantQuota> quotas_of(const LockedMaster& master) {
    return master.look([](const MasterState& state, Time) { return list_quotas(state); });
}

net::HttpResponse tenants_off() {
    return error_answer(StoreCode::kUnavailableInCurrentMode, "the master runs without --enable_multi_tenants");
}

/// 0: not in the body, or no number of bytes.
uint64_t wanted_bytes(const std::string& body) {
    const Json json = Json::parse(body, nullptr, false);
    const auto found = json.is_object() ? json.find("requested_quota_bytes") : json.end();
    if (found == json.end() || !found->is_number_unsigned()) return 0;
    const auto bytes = found->get<uint64_t>();
    return bytes > INT64_MAX ? 0 : bytes;
}

}  // namespace

Result<> AdminService::load_quota_file() {
    Result<Quotas> quotas;
    if (!options_.quota_file.empty()) quotas = load_quotas(options_.quota_file);
    if (!quotas && quotas.error().code() == Code::kNotFound) {
        MC_LOG_WARNING("{} is not there yet", options_.quota_file);
        quotas = Quotas();
    }
    if (!quotas) return Unexpected(std::move(quotas).error());
    for (const auto& [tenant, bytes] : *quotas)
        master_.run([&, &name = tenant, limit = bytes](Transaction& transaction, Time) { return set_quota(transaction, name, limit); });
    if (!quotas->empty()) {
        MC_LOG_INFO("{}: quotas of {} tenants", options_.quota_file, quotas->size());
    } else if (tenants_on(master_)) {
        MC_LOG_WARNING("no tenant has a quota, not even '{}': all writes are refused (-1701) until PUT /api/v1/tenant_quotas gives one",
                       TenantTable::kDefaultName);
    }
    return {};
}

Result<> AdminService::save_quota_file() const {
    if (options_.quota_file.empty()) return {};
    Quotas quotas;
    for (const TenantQuota& quota : quotas_of(master_))
        if (quota.explicit_policy) quotas.emplace(quota.tenant, quota.requested_bytes);
    return save_quotas(options_.quota_file, quotas);
}

std::optional<TenantQuota> AdminService::find_quota(std::string_view name) const {
    for (TenantQuota& quota : quotas_of(master_))
        if (quota.tenant == name) return std::move(quota);
    return {};
}

net::HttpResponse AdminService::get_quotas(const Request& request) const {
    if (!tenants_on(master_)) return tenants_off();
    if (const std::string* name = request.parameter("tenant_id"); name != nullptr && !name->empty()) {
        const auto quota = find_quota(*name);
        if (!quota) return error_answer(StoreCode::kTenantNotRegistered);
        return json_answer({{"success", true}, {"data", quota_json(*quota)}});
    }
    Json rows = Json::array();
    for (const TenantQuota& quota : quotas_of(master_)) rows.push_back(quota_json(quota));
    return json_answer({{"success", true}, {"data", std::move(rows)}});
}

net::HttpResponse AdminService::put_quota(const Request& request) {
    if (!tenants_on(master_)) return tenants_off();
    const std::string* name = request.parameter("tenant_id");
    if (name == nullptr || !valid_tenant_name(*name))
        return error_answer(StoreCode::kInvalidParams, "tenant_id is missing, no name, or too long");
    const uint64_t bytes = wanted_bytes(request.body);
    if (bytes == 0) return error_answer(StoreCode::kInvalidParams, "the body must be {\"requested_quota_bytes\": 1 to 2^63 - 1}");
    return change_quota(*name, bytes);
}

net::HttpResponse AdminService::delete_quota(const Request& request) {
    if (!tenants_on(master_)) return tenants_off();
    const std::string* name = request.parameter("tenant_id");
    if (name == nullptr || name->empty()) return error_answer(StoreCode::kInvalidParams, "the parameter 'tenant_id' is missing");
    return change_quota(*name, std::nullopt);
}

net::HttpResponse AdminService::change_quota(const std::string& name, std::optional<uint64_t> bytes) {
    const auto apply = [&](std::optional<uint64_t> quota) {
        return master_.run([&](Transaction& transaction, Time) {
            return quota ? set_quota(transaction, name, *quota) : store::delete_quota(transaction, name);
        });
    };
    Lock lock(quota_mutex_);
    const auto before = find_quota(name);
    if (const StoreCode code = apply(bytes); code != StoreCode::kOk) return error_answer(code);
    if (auto saved = save_quota_file(); !saved) {
        apply(before && before->explicit_policy ? std::optional(before->requested_bytes) : std::nullopt);
        const bool too_much = saved.error().code() == Code::kNoSpace;
        return error_answer(too_much ? StoreCode::kInvalidParams : StoreCode::kInternalError, saved.error().to_string());
    }
    const auto after = find_quota(name);
    return json_answer({{"success", true}, {"data", bytes && after ? quota_json(*after) : Json()}});
}

}  // namespace mooncake::store
