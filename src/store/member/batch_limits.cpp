// SPDX-License-Identifier: Apache-2.0
#include "store/member/batch_limits.h"

#include <algorithm>
#include <unordered_map>

namespace mooncake::store {

namespace {

/// What must stay together: one item without a group, or all items of one.
struct Unit {
    size_t keys = 0, bytes = 0;
    std::vector<uint32_t> items;
};

bool is_name(std::string_view name) { return name.size() <= kNameBytesMax; }
bool are_names(const std::vector<std::string>& names, size_t most) {
    return names.size() <= most && std::all_of(names.begin(), names.end(), is_name);
}

}  // namespace

std::vector<std::vector<uint32_t>> plan_put_start(std::span<const PutItem> items, const BatchLimits& limits) {
    std::unordered_map<std::string_view, Unit> groups;
    for (size_t i = 0; i < items.size(); ++i) {
        if (items[i].group.empty()) continue;
        Unit& group = groups[items[i].group];
        ++group.keys;
        group.bytes += wire_bytes(items[i]);
        group.items.push_back(static_cast<uint32_t>(i));
    }
    std::vector<std::vector<uint32_t>> requests;
    size_t keys = 0, bytes = 0;
    const auto add = [&](size_t more_keys, size_t more_bytes, std::span<const uint32_t> positions) {
        if (more_keys > limits.keys_max || more_bytes > limits.bytes_max) return;
        if (requests.empty() || keys + more_keys > limits.keys || bytes + more_bytes > limits.bytes) {
            requests.emplace_back();
            keys = bytes = 0;
        }
        keys += more_keys;
        bytes += more_bytes;
        requests.back().insert(requests.back().end(), positions.begin(), positions.end());
    };
    for (size_t i = 0; i < items.size(); ++i) {
        const auto position = static_cast<uint32_t>(i);
        if (items[i].group.empty()) {
            add(1, wire_bytes(items[i]), {&position, 1});
        } else if (const Unit& group = groups[items[i].group]; group.items.front() == position) {
            add(group.keys, group.bytes, group.items);
        }
    }
    return requests;
}

bool is_expressible(const WriteConfig& config) {
    return are_names(config.preferred_segments, kPreferredSegmentsMax) && is_name(config.writer_host);
}

bool is_expressible(const ReplicaClearRequest& request) { return is_name(request.tenant) && is_name(request.segment_name); }

bool is_expressible(const TaskRequest& request) {
    return is_name(request.tenant) && is_name(request.source) && are_names(request.targets, kTaskTargetsMax);
}

}  // namespace mooncake::store
