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
    };
    std::array<PerDirection, 2> by_direction;
    PerDirection& of(Direction direction) noexcept { return by_direction[static_cast<size_t>(direction)]; }

    /// An operation that ended.
    void finished(Direction direction, uint64_t length, Trouble trouble) noexcept {
        if (trouble != Trouble::kNone) return errors[static_cast<size_t>(trouble)]->add();
        of(direction).bytes->add(length);
        of(direction).operations->add();
    }

    std::array<metrics::Counter*, 5> errors{};        // by Trouble
    metrics::Counter* unattributed_errors = nullptr;  // without a context
    metrics::Counter* again = nullptr;                // posts that the provider had no room for
    metrics::Counter* recycles = nullptr;             // initiating endpoints thrown away
    metrics::Counter* fences = nullptr;               // serving endpoints closed
    metrics::Gauge* in_flight = nullptr;
    metrics::Gauge* pages_used = nullptr;
    metrics::Gauge* pages_limit = nullptr;  // -1: none known
};

}  // namespace mooncake::fabric
