// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "store/protocol/codes.h"
#include "store/protocol/ids.h"
#include "store/protocol/objects.h"

/// Copies, moves and drains. Plain data, as in objects.h.
namespace mooncake::store {

enum class TaskType : uint8_t { kCopy, kMove };
enum class TaskStatus : uint8_t { kPending, kProcessing, kSuccess, kFailed };

/// A copy names one or more targets and no source; a move one of each. All are segment names.
struct TaskRequest {
    TaskType type = TaskType::kCopy;
    std::string_view tenant, key;
    std::string_view source;
    std::vector<std::string> targets;
};
struct TaskReply {
    StoreCode code = StoreCode::kOk;
    TaskId task;
};
struct TaskInfo {
    TaskId id;
    TaskType type = TaskType::kCopy;
    TaskStatus status = TaskStatus::kPending;
    uint64_t created_ms = 0, updated_ms = 0;  // wall clock, since the epoch; filled in by the server
    ClientId client;                          // who carries it out
    std::string message;
};
/// How a CopyOrder ended.
struct TaskEnd {
    ClientId client;
    TaskId task;
    StoreCode code = StoreCode::kOk;
    std::string message;
    std::vector<uint32_t> in_doubt{};  // targets where its bytes may still land; told again without them once they cannot
};

enum class DrainStatus : uint8_t { kCreated, kRunning, kSucceeded, kFailed, kCancelled };
struct DrainRequest {
    std::vector<std::string> segments, targets;  // names; no targets: anywhere else
    uint32_t concurrency = 4;
};
struct DrainInfo {
    JobId id;
    DrainStatus status = DrainStatus::kCreated;
    std::vector<std::string> segments;
    uint64_t created_ms = 0, updated_ms = 0;
    uint64_t succeeded = 0, failed = 0, blocked = 0, active = 0, migrated_bytes = 0;
    std::string message;
};

struct TenantQuota {
    std::string tenant;
    uint64_t requested_bytes = 0, effective_bytes = 0, charged_bytes = 0;
    bool admission_closed = false, over_quota = false, explicit_policy = false;
};

}  // namespace mooncake::store
