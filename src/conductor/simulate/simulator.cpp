// SPDX-License-Identifier: Apache-2.0
#include "conductor/simulate/simulator.h"

#include <algorithm>
#include <numeric>
#include <queue>

namespace mooncake::conductor {

namespace {

Duration duration_of(double seconds) { return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds)); }
double seconds_of(Duration duration) { return std::chrono::duration<double>(duration).count(); }

/// One replay: arrivals from the trace, and what the scheduler's starts lead to.
class Replay {
public:
    Replay(std::span<const TraceRequest> trace, const SimulationOptions& options)
        : trace_(trace), options_(options), scheduler_(scheduler_options(options)) {}

    Result<SimulationResult> run() {
        MC_RETURN_IF_ERROR(add_instances());
        size_t next = 0;
        while (true) {
            const Time arrival = next < trace_.size() ? arrival_of(trace_[next]) : Time::max();
            const Time ending = ends_.empty() ? Time::max() : ends_.top().at;
            const Time ready = scheduler_.next_ready().value_or(Time::max());
            const Time now = std::max(now_, std::min({arrival, ending, ready}));
            if (now == Time::max()) break;
            now_ = now;
            // What ends at a moment makes room for what arrives at the same one.
            if (ending <= now) end_one();
            else if (arrival <= now) arrive(next++);
            start_ready();
        }
        return finish();
    }

private:
    struct End {
        Time at;
        RequestId request;
        bool prefill;
        bool operator>(const End& other) const noexcept { return std::tie(at, request) > std::tie(other.at, other.request); }
    };

    static SchedulerOptions scheduler_options(const SimulationOptions& options) {
        SchedulerOptions scheduler = options.scheduler;
        scheduler.decode = options.decode_nodes > 0;
        return scheduler;
    }

    Result<> add_instances() {
        if (options_.stages == 0 || options_.nodes < options_.stages)
            return fail(Code::kInvalidArgument, "not one pipeline of {} nodes", options_.stages);
        if (options_.speed <= 0) return fail(Code::kInvalidArgument, "the speed must be positive");
        for (uint32_t i = 0; i < options_.nodes / options_.stages; ++i) {
            MC_RETURN_IF_ERROR(scheduler_.add_instance({.name = fmt::format("p{}", i),
                                                        .role = Role::kPrefill,
                                                        .cache_blocks = options_.cache_blocks_per_node * options_.stages,
                                                        .pipeline = {.stages = options_.stages, .chunk_tokens = options_.chunk_tokens},
                                                        .flops_per_second = options_.flops_per_second}));
        }
        for (uint32_t i = 0; i < options_.decode_nodes; ++i) {
            MC_RETURN_IF_ERROR(scheduler_.add_instance({.name = fmt::format("d{}", i), .role = Role::kDecode, .cache_blocks = 0}));
        }
        return {};
    }

    Time arrival_of(const TraceRequest& request) const {
        return Time(duration_of(static_cast<double>(request.timestamp_ms) / 1000 / options_.speed));
    }

    void arrive(size_t number) {
        const TraceRequest& traced = trace_[number];
        ++result_.requests;
        const auto placed = scheduler_.submit({.id = number,
                                               .blocks = traced.blocks,
                                               .block_tokens = kTraceBlockTokens,
                                               .tokens = traced.input_tokens,
                                               .output_tokens = traced.output_tokens},
                                              now_);
        if (const auto* rejection = std::get_if<Rejection>(&placed)) {
            ++result_.rejected[reason_name(rejection->reason)];
            return;
        }
        const auto& placement = std::get<Placement>(placed);
        result_.blocks += traced.blocks.size();
        result_.reused_blocks += placement.reused_blocks;
    }

    void start_ready() {
        for (const Scheduler::Start& start : scheduler_.take_ready(now_)) {
            ends_.push({now_ + duration_of(start.expected_seconds), start.request, true});
        }
    }

    void end_one() {
        const End end = ends_.top();
        ends_.pop();
        const TraceRequest& traced = trace_[end.request];
        if (!end.prefill) return scheduler_.finished(end.request, now_);
        result_.ttft.push_back(seconds_of(now_ - arrival_of(traced)));
        // The instances are as fast as the model says for ever: nothing is measured.
        scheduler_.prefill_done(end.request, now_, 0, std::nullopt);
        const Placement& placement = *scheduler_.placement(end.request);
        if (placement.decode == kNoInstance) return scheduler_.finished(end.request, now_);
        const Instance& decode = *scheduler_.find(placement.decode);
        const DecodeLoad load = decode.load_at(now_, now_);
        const double tbt = decode.decode_cost.predict(load.requests, load.tokens);
        tbt_sum_ += tbt;
        ends_.push({now_ + duration_of(tbt * static_cast<double>(traced.output_tokens)), end.request, false});
    }

    SimulationResult finish() {
        std::sort(result_.ttft.begin(), result_.ttft.end());
        if (!result_.ttft.empty()) {
            const auto count = static_cast<double>(result_.ttft.size());
            result_.mean_ttft = std::accumulate(result_.ttft.begin(), result_.ttft.end(), 0.0) / count;
            result_.mean_tbt = tbt_sum_ / count;
        }
        return std::move(result_);
    }

    std::span<const TraceRequest> trace_;
    const SimulationOptions& options_;
    Scheduler scheduler_;
    Time now_{};
    std::priority_queue<End, std::vector<End>, std::greater<>> ends_;
    double tbt_sum_ = 0;
    SimulationResult result_;
};

}  // namespace

double SimulationResult::quantile(double share) const noexcept {
    if (ttft.empty()) return 0;
    return ttft[std::min(ttft.size() - 1, static_cast<size_t>(share * static_cast<double>(ttft.size())))];
}

Result<SimulationResult> simulate(std::span<const TraceRequest> trace, const SimulationOptions& options) {
    return Replay(trace, options).run();
}

}  // namespace mooncake::conductor
