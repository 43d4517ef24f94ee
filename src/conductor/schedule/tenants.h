// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/time.h"

namespace mooncake::conductor {

/// What one tenant may use; 0: as much as there is.
struct TenantLimits {
    uint32_t requests_max = 0;     // at the same time
    double tokens_per_second = 0;  // of prompts
    double burst_tokens = 0;       // 0: those of ten seconds
};

/// Counts what tenants use. A tenant without requests whose bucket is full again is forgotten. Not thread-safe.
class TenantTable {
public:
    explicit TenantTable(TenantLimits otherwise = {}) : otherwise_(otherwise) {}
    void set(const std::string& tenant, TenantLimits limits) { limits_[tenant] = limits; }

    /// Counts a request; or says in how many seconds it may be tried again.
    std::optional<double> admit(std::string_view tenant, uint64_t tokens, Time now);
    /// One that was counted is over.
    /// `refund`: tokens of a request that was not taken after all.
    void release(std::string_view tenant, uint64_t refund = 0);
    uint32_t requests(std::string_view tenant) const;

private:
    struct Use {
        uint32_t requests = 0;
        double debt_tokens = 0;  // what must drain away before the bucket is full again
        Time at{};
    };
    const TenantLimits& limits_of(std::string_view tenant) const;
    void forget_idle(Time now);

    TenantLimits otherwise_;
    std::map<std::string, TenantLimits, std::less<>> limits_;
    std::map<std::string, Use, std::less<>> uses_;
};

}  // namespace mooncake::conductor
