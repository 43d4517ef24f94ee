// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/error.h"
#include "store/protocol/tasks.h"

/// Copies and moves: see messages.h.
namespace mooncake::store {

constexpr size_t kTaskTargetsMax = 1024;

/// As in messages_objects.h.
struct ReceivedTask {
    TaskRequest request;
    std::unique_ptr<uint64_t[]> copy;
};

std::vector<std::byte> encode_task_request(const TaskRequest& request);
Result<ReceivedTask> decode_task_request(std::span<const std::byte> body);
std::vector<std::byte> encode_task_reply(const TaskReply& reply);
Result<TaskReply> decode_task_reply(std::span<const std::byte> body);
std::vector<std::byte> encode_task_query(const TaskId& task);
Result<TaskId> decode_task_query(std::span<const std::byte> body);
std::vector<std::byte> encode_task_info(const TaskInfo& info);
Result<TaskInfo> decode_task_info(std::span<const std::byte> body);
std::vector<std::byte> encode_task_end(const TaskEnd& end);
Result<TaskEnd> decode_task_end(std::span<const std::byte> body);

}  // namespace mooncake::store
