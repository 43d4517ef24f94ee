// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "conductor/schedule/scheduler.h"
#include "conductor/simulate/trace.h"

namespace mooncake::conductor {

struct SimulationOptions {
    SchedulerOptions scheduler{};
    uint32_t nodes = 10;  // of prefill
    uint32_t stages = 1;  // nodes that form one pipeline, which is one instance
    uint32_t chunk_tokens = 4096;
    size_t cache_blocks_per_node = 6000;
    double flops_per_second = 0.5 * 8 * 312e12;  // of a node
    uint32_t decode_nodes = 0;                   // 0: only prefill is simulated
    double speed = 1;                            // the trace is replayed so many times as fast
};

struct SimulationResult {
    uint64_t requests = 0, blocks = 0, reused_blocks = 0;
    std::vector<double> ttft;  // seconds, ascending; of those admitted
    double mean_ttft = 0, mean_tbt = 0;
    std::map<std::string, uint64_t> rejected;  // by reason

    double hit_ratio() const noexcept { return blocks == 0 ? 0 : static_cast<double>(reused_blocks) / static_cast<double>(blocks); }
    /// The time below which a share of the requests had its first token.
    double quantile(double share) const noexcept;
};

/// Replays a trace in virtual time on instances that behave exactly as the cost model says. The decisions are those of the same Scheduler that the
/// proxy asks. Deterministic.
Result<SimulationResult> simulate(std::span<const TraceRequest> trace, const SimulationOptions& options);

/// One line of a plot.
struct Curve {
    std::string name;
    std::vector<double> values;  // ascending
};
/// The shares of requests (0 to 1) whose value is at most so large, as an SVG image; the axis of values is logarithmic.
std::string plot_shares(const std::string& title, const std::string& axis, std::span<const Curve> curves);

}  // namespace mooncake::conductor
