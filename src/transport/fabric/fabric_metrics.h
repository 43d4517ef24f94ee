// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string>

#include "metrics/metrics.h"
#include "transport/fabric/trouble.h"

namespace mooncake::fabric {

/// What is counted of one rail; the registry owns it all. Thread-safe.
struct RailMetrics {
    /// Labels: nic, and direction or class.
    RailMetrics(metrics::Registry& registry, const std::string& nic);

    struct PerDirection {
        metrics::Counter* bytes = nullptr;
        metrics::Counter* operations = nullptr;
        metrics::Histogram* latency_ns = nullptr;  // from post to completion
    };
    std::array<PerDirection, 2> by_direction;
    PerDirection& of(Direction direction) noexcept { return by_direction[static_cast<size_t>(direction)]; }

    metrics::Counter* again_full = nullptr;        // back-pressure
    metrics::Counter* again_connecting = nullptr;  // nothing in flight, and still no room
    std::array<metrics::Counter*, 5> errors{};     // by Trouble; use error()
    metrics::Counter& error(Trouble trouble) noexcept { return *errors[static_cast<size_t>(trouble)]; }
    metrics::Counter* unattributed_errors = nullptr;  // without a context
    metrics::Counter* paths_down = nullptr;           // times that a path went down
    metrics::Counter* recycles = nullptr;             // initiating endpoints thrown away
    metrics::Counter* fences = nullptr;               // serving endpoints closed for somebody
    metrics::Gauge* in_flight = nullptr;
    metrics::Gauge* pages_used = nullptr;
    metrics::Gauge* pages_limit = nullptr;  // -1: none known
};

}  // namespace mooncake::fabric
