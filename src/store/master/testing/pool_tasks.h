// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "store/master/ops/task_ops.h"
#include "store/master/testing/pool.h"

namespace mooncake::store {

/// A pool of two nodes with a value "k" on the first, for tests of copies, moves and drains.
class PoolTasksTest : public PoolTest {
protected:
    void SetUp() override {
        add_node(1);
        add_node(2);
        put("k", kKiB, {.preferred_segments = {"node01:1"}});
    }
    TaskReply copy(std::string_view key, const std::vector<std::string>& targets) {
        auto t = transaction();
        return create_task(t, {.type = TaskType::kCopy, .tenant = tenant_, .key = key, .targets = targets}, now_);
    }
    TaskReply move(std::string_view key, std::string_view source, const std::string& target) {
        auto t = transaction();
        return create_task(t, {.type = TaskType::kMove, .tenant = tenant_, .key = key, .source = source, .targets = {target}}, now_);
    }
    StoreCode finish(const TaskId& task, StoreCode code = StoreCode::kOk, const ClientId& client = node(1),
                     std::vector<SegmentNumber> in_doubt = {}) {
        auto t = transaction();
        return end_task(t, {.client = client, .task = task, .code = code, .message = {}, .in_doubt = std::move(in_doubt)}, now_);
    }
    TaskStatus status(const TaskId& task) { return query_task(state(), task).value().info.status; }
    std::vector<SegmentNumber> segments_of(std::string_view key) {
        std::vector<SegmentNumber> found;
        for (size_t i = 0; i < object(key).replicas.size(); ++i) found.push_back(object(key).replicas[i].segment);
        return found;
    }
    using Numbers = std::vector<SegmentNumber>;
};

}  // namespace mooncake::store
