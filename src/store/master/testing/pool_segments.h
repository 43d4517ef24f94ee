// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "store/master/testing/pool.h"

namespace mooncake::store {

/// A pool whose nodes come, report, and go, for tests.
class PoolSegmentsTest : public PoolTest {
protected:
    StoreCode mount(const SegmentSpec& segment, const ClientId& client) {
        auto t = transaction();
        return mount_segment(t, {.client = client, .segment = segment}, now_);
    }
    StoreCode unmount(uint64_t number, Duration grace = 0s, std::optional<ClientId> client = {}) {
        auto t = transaction();
        return unmount_segment(t, {.client = client.value_or(node(number)), .segment = spec(number, kPool).id, .grace = grace}, now_);
    }
    RemountReply::Segment adopt(uint64_t number, const std::vector<HeldObject>& objects, const std::vector<HeldWrite>& writes = {},
                                uint64_t size = kPool) {
        const HeldSegment held{.segment = spec(number, size), .objects = objects, .writes = writes};
        auto t = transaction();
        return remount(t, {.client = node(number), .segments = {&held, 1}}, now_).segments[0];
    }
    static HeldObject held(std::string_view key, uint64_t offset, uint64_t generation, uint64_t length = kKiB) {
        return {.tenant = "default", .key = key, .offset = offset, .length = length, .generation = generation, .checksum = generation * 10};
    }
};

}  // namespace mooncake::store
