// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "store/protocol/messages_objects.h"
#include "store/protocol/messages_tasks.h"

/// How batches of any length become requests that a master takes.
namespace mooncake::store {

struct BatchLimits {
    size_t keys = size_t{1} << 18, bytes = 16 << 20;   // of one request; more become several
    size_t keys_max = kKeysMax, bytes_max = 60 << 20;  // what cannot be split (a group, a key) may have that much
};

inline size_t wire_bytes(std::string_view key) { return key.size() + 4; }
inline size_t wire_bytes(const PutEndItem& item) { return item.key.size() + 24; }
inline size_t wire_bytes(const PutItem& item) { return item.key.size() + item.group.size() + 16; }

/// How many of these go into the first request: at least one, if there is any.
template <typename Item>
size_t first_request(std::span<const Item> items, const BatchLimits& limits = {}) {
    size_t count = 0, bytes = 0;
    for (; count < items.size() && count < limits.keys; ++count) {
        bytes += wire_bytes(items[count]);
        if (count != 0 && bytes > limits.bytes) break;
    }
    return count;
}

/// The positions of the items that go into each request, with all items of a group in the same one, since a group is started as a whole
/// or not at all. Items that are in none are too much for any, alone or with their group.
std::vector<std::vector<uint32_t>> plan_put_start(std::span<const PutItem> items, const BatchLimits& limits = {});

/// Whether a master would understand it. What it would not names nothing that it could know.
bool is_expressible(const WriteConfig& config);
bool is_expressible(const ReplicaClearRequest& request);
bool is_expressible(const TaskRequest& request);

}  // namespace mooncake::store
