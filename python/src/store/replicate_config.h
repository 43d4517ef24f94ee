// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "store/protocol/objects.h"

namespace mooncake::python {

/// The Python class of this name: how values are to be stored.
struct ReplicateConfig {
    uint64_t replica_num = 1;
    uint64_t nof_replica_num = 0;
    uint64_t dfs_replica_num = 0;
    store::SoftPinAction soft_pin_action = store::SoftPinAction::kPreserve;
    std::optional<uint64_t> soft_pin_ttl_ms;
    bool with_hard_pin = false;
    std::vector<std::string> preferred_segments;
    std::string preferred_segment;
    std::vector<std::string> preferred_nof_segments;
    bool prefer_alloc_in_same_node = false;
    store::ObjectDataType data_type = store::ObjectDataType::kUnknown;
    std::optional<std::vector<std::string>> group_ids;

    std::string to_string() const;
};

/// A ReplicateConfig as the store takes it; a copy, because other threads may change the object meanwhile.
struct WriteOptions {
    store::WriteConfig config;
    std::vector<std::string> groups;  // per value; empty: none

    std::string_view group_of(size_t value) const noexcept { return groups.empty() ? std::string_view() : groups[value]; }
};

/// Whether a call may ask for memory on its own host.
enum class SameNode : uint8_t { kRefused, kAllowed };

/// Nothing if it makes no sense for a call of `values` values: what is wrong is logged. `config` null: defaults. `host`: our own.
std::optional<WriteOptions> write_options(const ReplicateConfig* config, size_t values, SameNode same_node, std::string_view host);

}  // namespace mooncake::python
