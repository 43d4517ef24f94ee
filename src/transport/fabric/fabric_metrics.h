// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string>
#include <vector>

#include "base/time.h"
#include "metrics/metrics.h"
#include "transport/fabric/queue.h"
#include "transport/fabric/trouble.h"

namespace mooncake::fabric {

/// What is counted of one rail; the registry owns it all. Thread-safe unless it says otherwise.
struct RailMetrics {
    /// Labels: nic, and direction or class.
    RailMetrics(metrics::Registry& registry, const std::string& nic);

    struct PerDirection {
        metrics::Counter* bytes = nullptr;
        metrics::Counter* operations = nullptr;
        metrics::Histogram* latency_ns = nullptr;
    };
    std::array<PerDirection, 2> by_direction;
    PerDirection& of(Direction direction) noexcept { return by_direction[static_cast<size_t>(direction)]; }

    /// An operation that ended.
    void finished(Direction direction, uint64_t length, Trouble trouble) noexcept {
        if (trouble != Trouble::kNone) return errors[static_cast<size_t>(trouble)]->add();
        of(direction).bytes->add(length);
        of(direction).operations->add();
    }

    /// Of an operation to a peer's rail of that number. With the rail's lock.
    void took(const Piece& piece, Duration time, uint32_t remote, bool success);

    std::array<metrics::Counter*, 5> errors{};        // by Trouble
    metrics::Counter* unattributed_errors = nullptr;  // without a context
    std::array<metrics::Counter*, 2> again{};         // posts that the provider had no room for; no connection
    metrics::Counter* recycles = nullptr;             // initiating endpoints thrown away
    metrics::Counter* fences = nullptr;               // serving endpoints closed
    metrics::Counter* paths_lost = nullptr;           // paths that went down
    metrics::Counter* forgotten = nullptr;            // idle paths whose address was given back
    std::array<metrics::Gauge*, 4> paths{};           // by PathState
    metrics::Gauge* in_flight = nullptr;
    metrics::Gauge* pages_used = nullptr;
    metrics::Gauge* pages_limit = nullptr;  // -1: none known

private:
    /// To all peers' rails of one number.
    struct PerPath {
        metrics::Counter* bytes = nullptr;
        metrics::Counter* operations = nullptr;
        metrics::Counter* errors = nullptr;
    };
    PerPath& path_to(uint32_t remote);

    metrics::Registry& registry_;
    const std::string nic_;
    std::vector<PerPath> by_remote_;  // made when first used
};

}  // namespace mooncake::fabric
