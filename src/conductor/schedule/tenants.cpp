// SPDX-License-Identifier: Apache-2.0
#include "conductor/schedule/tenants.h"

#include <algorithm>

namespace mooncake::conductor {

namespace {

constexpr size_t kRememberedMax = 10'000;
constexpr double kRetryWhenFullSeconds = 1;

double burst_of(const TenantLimits& limits) noexcept {
    return limits.burst_tokens > 0 ? limits.burst_tokens : limits.tokens_per_second * 10;
}

double seconds_between(Time from, Time to) noexcept { return std::chrono::duration<double>(to - from).count(); }

}  // namespace

std::optional<double> TenantTable::admit(std::string_view tenant, uint64_t tokens, Time now) {
    if (uses_.size() >= kRememberedMax) forget_idle(now);
    const TenantLimits& limits = limits_of(tenant);
    Use& use = uses_.try_emplace(std::string(tenant), Use{.at = now}).first->second;
    if (limits.requests_max > 0 && use.requests >= limits.requests_max) return kRetryWhenFullSeconds;
    if (limits.tokens_per_second > 0) {
        use.debt_tokens = std::max(0.0, use.debt_tokens - seconds_between(use.at, now) * limits.tokens_per_second);
        use.at = now;
        // A prompt larger than the bucket is let in when the bucket is full; it could never be otherwise.
        const double excess = use.debt_tokens + static_cast<double>(tokens) - burst_of(limits);
        if (excess > 0 && use.debt_tokens > 0) return std::min(excess, use.debt_tokens) / limits.tokens_per_second;
        use.debt_tokens += static_cast<double>(tokens);
    }
    ++use.requests;
    return std::nullopt;
}

void TenantTable::release(std::string_view tenant, uint64_t refund) {
    const auto found = uses_.find(tenant);
    if (found == uses_.end()) return;
    if (found->second.requests > 0) --found->second.requests;
    found->second.debt_tokens = std::max(0.0, found->second.debt_tokens - static_cast<double>(refund));
}

uint32_t TenantTable::requests(std::string_view tenant) const {
    const auto found = uses_.find(tenant);
    return found == uses_.end() ? 0 : found->second.requests;
}

const TenantLimits& TenantTable::limits_of(std::string_view tenant) const {
    const auto found = limits_.find(tenant);
    return found == limits_.end() ? otherwise_ : found->second;
}

void TenantTable::forget_idle(Time now) {
    std::erase_if(uses_, [&](const auto& entry) {
        const auto& [name, use] = entry;
        return use.requests == 0 && use.debt_tokens <= seconds_between(use.at, now) * limits_of(name).tokens_per_second;
    });
}

}  // namespace mooncake::conductor
