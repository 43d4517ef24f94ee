// SPDX-License-Identifier: Apache-2.0
#include "replicate_config.h"

#include <array>
#include <limits>

#include "base/log.h"
#include "interpreter.h"

namespace mooncake::python {

namespace {

std::string joined(const std::vector<std::string>& names) {
    std::string text = "[";
    for (const std::string& name : names) text += (text.size() > 1 ? ", " : "") + name;
    return text + "]";
}

constexpr std::array<std::string_view, 3> kSoftPinActions = {"PRESERVE", "ENABLE", "DISABLE"};
constexpr std::array<std::string_view, 10> kDataTypes = {"UNKNOWN",    "KVCACHE",  "TENSOR",          "WEIGHT",   "SAMPLE",
                                                         "ACTIVATION", "GRADIENT", "OPTIMIZER_STATE", "METADATA", "GENERAL"};

template <size_t kCount, typename Enum>
std::string_view name_in(const std::array<std::string_view, kCount>& names, Enum value) {
    const auto index = static_cast<size_t>(value);
    return index < kCount ? names[index] : "?";
}

/// Why it is refused; null if it is not.
const char* objection(const ReplicateConfig& config, size_t values, SameNode same_node) {
    constexpr uint64_t kReplicasMax = 1 << 16;
    if (config.replica_num == 0) return "replica_num is 0";
    if (config.replica_num > kReplicasMax) return "replica_num is too large";
    if (config.nof_replica_num != 0) return "nof_replica_num: this build has no such replicas";
    if (config.dfs_replica_num != 0) return "dfs_replica_num: this build has no such replicas";
    if (config.soft_pin_ttl_ms && config.soft_pin_action != store::SoftPinAction::kEnable)
        return "soft_pin_ttl_ms needs soft_pin_action ENABLE";
    if (config.soft_pin_ttl_ms > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) / 1'000'000)
        return "soft_pin_ttl_ms is too large";
    if (config.group_ids && config.group_ids->size() != values) return "group_ids must have one entry per key";
    if (!config.prefer_alloc_in_same_node) return nullptr;
    if (same_node == SameNode::kRefused) return "prefer_alloc_in_same_node is for calls with several buffers per key";
    return config.replica_num == 1 ? nullptr : "prefer_alloc_in_same_node needs replica_num 1";
}

}  // namespace

std::string ReplicateConfig::to_string() const {
    return format_text(
        "ReplicateConfig: {{ replica_num: {}, nof_replica_num: {}, dfs_replica_num: {}, soft_pin_action: {}, soft_pin_ttl_ms: {}, "
        "with_hard_pin: {:d}, preferred_segments: {}, {}preferred_nof_segments: {}, prefer_alloc_in_same_node: {:d}, data_type: {}{} }}",
        replica_num, nof_replica_num, dfs_replica_num, name_in(kSoftPinActions, soft_pin_action),
        soft_pin_ttl_ms ? std::to_string(*soft_pin_ttl_ms) : "default", with_hard_pin, joined(preferred_segments),
        preferred_segment.empty() ? "" : "preferred_segment: " + preferred_segment + ", ", joined(preferred_nof_segments),
        prefer_alloc_in_same_node, name_in(kDataTypes, data_type), group_ids ? ", group_ids: " + joined(*group_ids) : "");
}

std::optional<WriteOptions> write_options(const ReplicateConfig* config, size_t values, SameNode same_node, std::string_view host) {
    WriteOptions options;
    if (config == nullptr) return options;
    if (const char* const why = objection(*config, values, same_node)) {
        static constinit LogLimit limit(1s);
        if (limit.allow()) log_from_python(LogLevel::kWarning, format_text("a write is refused: {}", why));
        return std::nullopt;
    }
    options.config.replica_num = static_cast<uint32_t>(config->replica_num);
    options.config.soft_pin = config->soft_pin_action;
    if (config->soft_pin_ttl_ms) options.config.soft_pin_ttl = std::chrono::milliseconds(*config->soft_pin_ttl_ms);
    options.config.hard_pin = config->with_hard_pin;
    options.config.data_type = config->data_type;
    if (!config->preferred_segment.empty()) {
        options.config.preferred_segments = {config->preferred_segment};
    } else {
        options.config.preferred_segments = config->preferred_segments;
    }
    if (config->prefer_alloc_in_same_node) options.config.writer_host = host;
    if (config->group_ids) options.groups = *config->group_ids;
    return options;
}

}  // namespace mooncake::python
