// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "conductor/schedule/blocks.h"
#include "conductor/schedule/prefix_index.h"

namespace mooncake::conductor {

using RequestId = uint64_t;

/// Smaller numbers go first.
enum class Priority : uint8_t { kHigh, kNormal, kLow };
inline constexpr size_t kPriorities = 3;

/// What the scheduler must know of a request.
struct Request {
    RequestId id = 0;  // chosen by the caller, unique among those under way
    std::vector<BlockHash> blocks;
    uint32_t block_tokens = 512;
    uint64_t tokens = 0;         // of the prompt; an estimate where nobody counted
    uint64_t output_tokens = 0;  // expected; 0: unknown
    uint32_t store_blocks = 0;   // how many of the first blocks lie in the store
    Priority priority = Priority::kNormal;
    std::string tenant;
};

inline constexpr InstanceId kNoInstance = ~InstanceId{0};

/// Where a request goes, and what is expected of that.
struct Placement {
    InstanceId prefill = kNoInstance;
    InstanceId decode = kNoInstance;  // none: there are no decode instances to choose from
    uint32_t reused_blocks = 0;       // which need not be computed
    uint32_t local_blocks = 0;        // those of them that are there already
    double transfer_seconds = 0;      // to bring the others
    double ttft_seconds = 0, tbt_seconds = 0;
};

enum class RejectReason : uint8_t { kNobody, kTtft, kTbt, kTenant, kQueueFull };
const char* reason_name(RejectReason reason) noexcept;

struct Rejection {
    RejectReason reason = RejectReason::kNobody;
    double retry_after_seconds = 1;
};

}  // namespace mooncake::conductor
