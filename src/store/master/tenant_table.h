// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "store/master/eviction_policy.h"

namespace mooncake::store {

struct Tenant {
    Tenant(std::string tenant_name, uint64_t hash, ObjectTable& table, bool looks_ahead)
        : name(std::move(tenant_name)), name_hash(hash), order(table, looks_ahead) {}

    std::string name;
    const uint64_t name_hash;                 // what outlives the tenant knows it by this
    std::optional<uint64_t> requested_quota;  // nothing: no policy, so no new writes where tenants are on
    uint64_t effective_quota = 0;
    uint64_t charged_bytes = 0;  // ranges of values, writes and copies; what is in quarantine is nobody's
    uint64_t evicted_bytes = 0;  // since the start
    size_t objects = 0;
    EvictionOrder order;
};

/// The tenants by name and by number; number 1 is the default tenant and always there. Not thread-safe.
class TenantTable {
public:
    static constexpr TenantNumber kDefault = 1;
    static constexpr std::string_view kDefaultName = "default";

    /// `looks_ahead`: as of SegmentedLruPolicy.
    explicit TenantTable(ObjectTable& objects, bool looks_ahead = false) : objects_(objects), looks_ahead_(looks_ahead), tenants_(1) {
        find_or_insert(kDefaultName);
    }

    TenantNumber find(std::string_view name) const {
        const auto found = by_name_.find(std::string(name));
        return found == by_name_.end() ? 0 : found->second;
    }
    TenantNumber find_or_insert(std::string_view name);
    /// Not 0.
    uint64_t hash(std::string_view name) const { return objects_.hash(0, name) | 1; }
    void set_quota(TenantNumber number, std::optional<uint64_t> bytes, uint64_t capacity);
    /// Shares out `capacity`: each gets what it asked for, or its proportional part if that is more than there is.
    void share_out(uint64_t capacity);
    /// The same, if that is another capacity than was shared out last.
    void follow_capacity(uint64_t capacity) {
        if (capacity != shared_out_) share_out(capacity);
    }
    /// Forgets it if it has no policy and nothing of its own; never the default one.
    void drop_if_unused(TenantNumber number);

    Tenant& operator[](TenantNumber number) { return *tenants_[number]; }
    const Tenant& operator[](TenantNumber number) const { return *tenants_[number]; }
    bool exists(TenantNumber number) const { return number < tenants_.size() && tenants_[number] != nullptr; }
    TenantNumber limit() const noexcept { return static_cast<TenantNumber>(tenants_.size()); }

private:
    ObjectTable& objects_;
    const bool looks_ahead_;
    uint64_t shared_out_ = 0;
    std::vector<std::unique_ptr<Tenant>> tenants_;
    std::vector<TenantNumber> free_;
    std::unordered_map<std::string, TenantNumber> by_name_;
};

}  // namespace mooncake::store
