// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/time.h"
#include "engine/link.h"

namespace mooncake {

/// Turns the counters of all paths into one line per path and direction that moved something since the last call:
/// "tcp write: 812.3 MB/s, 1203 transfers, p50 81 us, p99 402 us". Not thread-safe.
class MetricsLog {
public:
    struct Source {
        std::string path;
        PathMetrics* metrics = nullptr;
    };
    explicit MetricsLog(std::vector<Source> sources) : sources_(std::move(sources)) {}

    std::vector<std::string> lines(Duration since_last);

private:
    struct Seen {
        uint64_t bytes = 0;
        uint64_t transfers = 0;
        std::map<uint64_t, uint64_t> buckets;
    };
    const std::vector<Source> sources_;
    std::map<std::pair<std::string, Direction>, Seen> seen_;
};

}  // namespace mooncake
