// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "conductor/schedule/blocks.h"

namespace mooncake::conductor {

/// One line of a trace: {"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [...]}.
struct TraceRequest {
    uint64_t timestamp_ms = 0;
    uint64_t input_tokens = 0, output_tokens = 0;
    std::vector<BlockHash> blocks;
};

inline constexpr uint32_t kTraceBlockTokens = 512;

/// Lines of JSON, in the order of their time. kInvalidArgument names the line.
Result<std::vector<TraceRequest>> parse_trace(std::string_view text);
Result<std::vector<TraceRequest>> read_trace(const std::string& path);

}  // namespace mooncake::conductor
