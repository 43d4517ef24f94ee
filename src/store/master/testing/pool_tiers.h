// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <vector>

#include "store/master/ops/tier_ops.h"
#include "store/master/testing/pool_segments.h"

namespace mooncake::store {

/// A pool of nodes with disks, for tests: what the master orders is found in its state, and carried out by hand.
class PoolTiersTest : public PoolSegmentsTest {
protected:
    static constexpr uint64_t kDisk = 1 << 20;

    static SegmentSpec disk_spec(uint64_t number, uint64_t size = kDisk) {
        SegmentSpec disk = spec(number, size);
        disk.id = {4, number};
        disk.base = 0;
        disk.kind = SegmentKind::kDisk;
        disk.service = format_text("node{:02}:2", number);
        return disk;
    }
    /// Node `number` with memory and a disk; returns the disk.
    SegmentNumber add_node_with_disk(uint64_t number, uint64_t size = kPool, uint64_t disk_size = kDisk) {
        add_node(number, size);
        EXPECT_EQ(mount(disk_spec(number, disk_size), node(number)), StoreCode::kOk);
        return state().segments().find(disk_spec(number).id);
    }
    /// What is under way between tiers, oldest first.
    std::vector<TaskId> orders() {
        std::vector<TaskId> found;
        for (const auto& [task, id] : state().tiers().copies) found.push_back(state().copy(id).task);
        return found;
    }
    const Copy& order(const TaskId& task) { return state().copy(state().find_tier_copy(task)); }
    StoreCode finish(const TaskId& task, StoreCode code = StoreCode::kOk, uint64_t number = 1, uint64_t window = 0, uint32_t in_doubt = 0) {
        auto t = transaction();
        const CopyEnd end{.task = task, .code = code, .in_doubt = in_doubt};
        return end_copies(t, {.client = node(number), .items = {&end, 1}, .window_bytes = window}, now_).codes[0];
    }
    /// Jobs, and all that they order succeeds, until they order nothing more. Returns how many copies that were.
    size_t offload_all(StoreCode code = StoreCode::kOk, uint64_t number = 1) {
        size_t count = 0;
        for (int i = 0; i < 1000; ++i) {
            beat(node(number));
            jobs();
            const std::vector<TaskId> under_way = orders();
            if (under_way.empty()) break;
            for (const TaskId& task : under_way) finish(task, code, number);
            count += under_way.size();
        }
        return count;
    }
    StoreCode gone(std::string_view key, uint64_t generation, uint64_t number = 1) {
        auto t = transaction();
        const GoneReplica one{.tenant = tenant_, .key = key, .generation = generation};
        return replicas_gone(t, {.client = node(number), .segment = disk_spec(number).id, .items = {&one, 1}}, now_);
    }
    std::vector<SegmentNumber> segments_of(std::string_view key) {
        std::vector<SegmentNumber> found;
        if (!holds(key)) return found;
        for (size_t i = 0; i < object(key).replicas.size(); ++i) found.push_back(object(key).replicas[i].segment);
        return found;
    }
    using Numbers = std::vector<SegmentNumber>;
};

}  // namespace mooncake::store
