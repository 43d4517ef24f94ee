// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/error.h"
#include "base/time.h"
#include "conductor/schedule/instance.h"
#include "conductor/schedule/policy.h"
#include "conductor/schedule/prefix_index.h"
#include "conductor/schedule/tenants.h"

namespace mooncake::conductor {

struct SchedulerOptions {
    Policy policy = Policy::kFlow;
    ModelShape shape{};
    double copy_bytes_per_second = 87e9;                    // between instances
    double copy_threshold = 1.3;                            // policy "global": how much longer a prefix elsewhere must be
    double aging = 0.5;                                     // policy "flow": a second of waiting counts as so many seconds less work
    Duration window = 0s;                                   // an instance is given more when its work is expected to end within so long
    uint32_t prefilling_max = 256;                          // started on one instance at the same time
    size_t waiting_max = 10'000;                            // over all instances
    std::optional<double> ttft_target, tbt_target;          // seconds; none: everything is admitted
    double share_of_target[kPriorities] = {1.0, 0.9, 0.6};  // the load up to which each priority is admitted
    bool decode = true;                                     // a decode instance is chosen as well
    double output_tokens = 350;                             // of a request that does not say
    TenantLimits tenant{};
    BreakerOptions breaker{}, pair_breaker{.failures_to_open = 2, .rest = 30s, .rest_max = 300s};
    uint64_t seed = 1;
};

/// Where instances of the last attempts must not be chosen again.
struct Avoid {
    std::vector<InstanceId> prefill, decode;
    InstanceId keep_decode = kNoInstance;  // where it is still fit: this one again
};

/// Decides where requests go, in which order and whether at all. A state machine: no I/O, no clock, no threads. A request is submitted, starts (take_ready),
/// has its prefill done, and is over; it may be placed anew between. Not thread-safe.
class Scheduler {
public:
    explicit Scheduler(SchedulerOptions options);

    /// kAlreadyExists: there is one of that name.
    Result<InstanceId> add_instance(InstanceSpec spec);
    /// It gets nothing new and is gone when its last request is over. kNotFound.
    Result<> remove_instance(std::string_view name);
    Result<> drain_instance(std::string_view name, bool draining);
    void set_healthy(InstanceId id, bool healthy);
    /// Those that are there, the removed ones with requests under way included.
    const Instance* find(InstanceId id) const noexcept;
    InstanceId find(std::string_view name) const noexcept;
    std::vector<InstanceId> instances() const;

    /// Decides. Whoever is admitted must be ended with finished() or cancel().
    std::variant<Placement, Rejection> submit(Request request, Time now);
    /// Something failed before the first token: places it anew. The request keeps its place in time. Rejected: it is over.
    std::variant<Placement, Rejection> place_again(RequestId id, const Avoid& avoid, Time now);
    struct Start {
        RequestId request = 0;
        double expected_seconds = 0;  // until its first token
    };
    /// Who may go to its prefill instance now.
    std::vector<Start> take_ready(Time now);
    /// When take_ready() may have somebody without anything else happening.
    std::optional<Time> next_ready() const;

    /// `seconds`: how long it took on the instance; `prefix`: tokens it found cached, where known. Both feed the rates.
    void prefill_done(RequestId id, Time now, double seconds, std::optional<uint64_t> prefix_tokens);
    /// The mean time between the tokens of one request that is over.
    void token_time(InstanceId decode, double seconds, Time now);
    void finished(RequestId id, Time now);
    void cancel(RequestId id, Time now);

    /// What became of an attempt; a pair is blamed when both of its instances are well.
    void instance_failed(InstanceId id, Time now);
    void instance_succeeded(InstanceId id);
    void instance_answered(InstanceId id, Time now);  // a probe, not a request
    void pair_failed(InstanceId prefill, InstanceId decode, Time now);
    void pair_succeeded(InstanceId prefill, InstanceId decode);
    BreakerState pair_state(InstanceId prefill, InstanceId decode, Time now) const;

    PrefixIndex& cache() noexcept { return cache_; }
    const PrefixIndex& cache() const noexcept { return cache_; }
    TenantTable& tenants() noexcept { return tenants_; }
    size_t waiting() const noexcept { return waiting_; }
    size_t requests() const noexcept { return jobs_.size(); }
    const Placement* placement(RequestId id) const;
    const SchedulerOptions& options() const noexcept { return options_; }

private:
    enum class Stage : uint8_t { kWaiting, kPrefilling, kDecoding };
    struct Job {
        Request request;
        Placement placement;
        Stage stage = Stage::kWaiting;
        Time submitted, bound;
        PrefillTime compute;
    };
    /// What comes first has the smaller one: the priority, then work or time.
    using Order = std::pair<Priority, double>;

    Instance& at(InstanceId id) { return *instances_[id]; }
    bool overlaps() const noexcept { return options_.policy == Policy::kFlow; }
    std::variant<Placement, Rejection> place(Job& job, const Avoid& avoid, Time now);
    std::vector<Offer> make_offers(const Job& job, const Avoid& avoid, Time now);
    Offer make_offer(InstanceId id, const Job& job, const OfferTerms& terms, Time now) const;
    Order order_of(const Job& job, double occupancy) const;
    bool fit_to_decode(InstanceId id, InstanceId prefill, const Job& job, const Avoid& avoid, Time begin, Time now) const;
    InstanceId choose_decode(const Job& job, InstanceId prefill, const Avoid& avoid, Time begin, Time now) const;
    double predict_tbt(InstanceId decode, const Request& request, Time begin, Time now) const;
    std::optional<Rejection> admission(const Request& request, const Placement& placement, Time now) const;
    void bind(Job& job, const Offer& offer, const Placement& placement, Time now);
    void unbind(Job& job, Time now);
    Start start(Job& job, Time now);
    void leave_prefill(const Job& job, Time now);
    bool may_start(const Instance& instance, Time now) const noexcept;
    double expected_output(const Request& request) const noexcept;
    void abandon_trials(const Placement& placement);
    void end(RequestId id, Time now);
    void free_if_gone(InstanceId id);

    const SchedulerOptions options_;
    std::vector<std::optional<Instance>> instances_;  // by id
    std::map<std::string, InstanceId, std::less<>> names_;
    std::map<std::pair<InstanceId, InstanceId>, Breaker> pairs_;  // only those that failed
    std::unordered_map<RequestId, Job> jobs_;
    PrefixIndex cache_;
    TenantTable tenants_;
    std::vector<uint32_t> matched_;  // scratch
    std::mt19937_64 random_;
    uint64_t turn_ = 0;
    size_t waiting_ = 0;
};

}  // namespace mooncake::conductor
