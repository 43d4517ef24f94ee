// SPDX-License-Identifier: Apache-2.0
#include "conductor/proxy/cluster.h"

#include "conductor/proxy/dialect.h"
#include "net/address.h"

namespace mooncake::conductor {

namespace {

constexpr int kProbesToFail = 2;

}  // namespace

ProxyMetrics::ProxyMetrics(metrics::Registry& to)
    : registry(to), ttft(to.histogram("mooncake_conductor_ttft_seconds", "from a request to the first byte of its answer", {}, 1e9)),
      tbt(to.histogram("mooncake_conductor_tbt_seconds", "mean time between the events of a stream", {}, 1e9)),
      queued(to.histogram("mooncake_conductor_queue_seconds", "how long requests waited for their turn", {}, 1e9)),
      prefill(to.histogram("mooncake_conductor_prefill_seconds", "how long prefill instances took", {}, 1e9)),
      decision(to.histogram("mooncake_conductor_decision_seconds", "how long placing a request took", {}, 1e9)),
      predicted_tokens(to.counter("mooncake_conductor_predicted_cached_tokens_total", "tokens that were expected to be cached")),
      cached_tokens(to.counter("mooncake_conductor_cached_tokens_total", "tokens that prefill instances found cached")),
      open(to.gauge("mooncake_conductor_open_requests", "requests under way")),
      waiting(to.gauge("mooncake_conductor_waiting_requests", "requests that wait for their turn")) {}

metrics::Counter& ProxyMetrics::rejected(RejectReason reason) {
    return registry.counter("mooncake_conductor_rejected_total", "requests that were refused", {{"reason", reason_name(reason)}});
}

metrics::Counter& ProxyMetrics::retried(std::string_view side) {
    return registry.counter("mooncake_conductor_retries_total", "requests that were placed anew", {{"failed", std::string(side)}});
}

metrics::Counter& ProxyMetrics::ended(std::string_view outcome) {
    return registry.counter("mooncake_conductor_requests_total", "requests that are over", {{"outcome", std::string(outcome)}});
}

/// What is to be called when nothing is locked any more.
struct Cluster::Wakes {
    std::vector<std::function<void()>> ready;
    std::optional<Time> next;
};

Cluster::Cluster(SchedulerOptions options, metrics::Registry& registry)
    : scheduler_options_(options), metrics_(registry), scheduler_(std::move(options)) {}

Cluster::~Cluster() = default;

Result<std::string> Cluster::add(MemberSpec spec) {
    if (spec.host.empty() || spec.port == 0) return fail(Code::kInvalidArgument, "an instance needs a host and a port");
    if (spec.instance.name.empty()) spec.instance.name = net::join_host_port(spec.host, spec.port);
    Lock lock(mutex_);
    const std::string name = spec.instance.name;
    const InstanceId known = scheduler_.find(name);
    if (known != kNoInstance) {
        const Endpoint& there = *endpoints_.at(known);
        if (there.host != spec.host || there.port != spec.port || scheduler_.find(known)->spec.role != spec.instance.role) {
            return fail(Code::kAlreadyExists, "there is another instance {} at {}:{}", name, there.host, there.port);
        }
        return name;
    }
    MC_ASSIGN_OR_RETURN(const InstanceId id, scheduler_.add_instance(std::move(spec.instance)));
    endpoints_[id] = std::make_shared<Endpoint>(
        Endpoint{.name = name, .host = spec.host, .port = spec.port, .bootstrap_port = spec.bootstrap_port});
    failed_probes_[id] = 0;
    return name;
}

Result<> Cluster::remove(std::string_view name) {
    Lock lock(mutex_);
    MC_RETURN_IF_ERROR(scheduler_.remove_instance(name));
    forget_gone();
    return {};
}

Result<> Cluster::drain(std::string_view name, bool draining) {
    Lock lock(mutex_);
    return scheduler_.drain_instance(name, draining);
}

std::variant<Cluster::Placed, Rejection> Cluster::submit(Request request, std::function<void()> wake) {
    Wakes wakes;
    std::variant<Placed, Rejection> result;
    const Time now = Clock::now();
    {
        Lock lock(mutex_);
        const RequestId id = request.id;
        result = keep(id, scheduler_.submit(std::move(request), now), std::move(wake), wakes);
    }
    metrics_.decision.observe(static_cast<uint64_t>((Clock::now() - now).count()));
    deliver(std::move(wakes));
    return result;
}

std::variant<Cluster::Placed, Rejection> Cluster::place_again(RequestId id, const Avoid& avoid, std::function<void()> wake) {
    Wakes wakes;
    std::variant<Placed, Rejection> result;
    {
        Lock lock(mutex_);
        waiting_.erase(id);
        result = keep(id, scheduler_.place_again(id, avoid, Clock::now()), std::move(wake), wakes);
        forget_gone();
    }
    deliver(std::move(wakes));
    return result;
}

std::variant<Cluster::Placed, Rejection> Cluster::keep(RequestId id, std::variant<Placement, Rejection> placed, std::function<void()> wake,
                                                       Wakes& wakes) {
    if (const auto* rejection = std::get_if<Rejection>(&placed)) {
        // Who finds nobody may ask again.
        if (rejection->reason != RejectReason::kNobody) metrics_.rejected(rejection->reason).add();
        return *rejection;
    }
    const auto& placement = std::get<Placement>(placed);
    waiting_[id] = std::move(wake);
    Placed result{.placement = placement, .prefill = endpoints_.at(placement.prefill), .decode = endpoints_.at(placement.decode)};
    collect(wakes, Clock::now());
    return result;
}

void Cluster::prefill_done(RequestId id, double seconds, std::optional<uint64_t> cached_tokens) {
    metrics_.prefill.observe(static_cast<uint64_t>(seconds * 1e9));
    if (cached_tokens) metrics_.cached_tokens.add(*cached_tokens);
    Wakes wakes;
    {
        Lock lock(mutex_);
        scheduler_.prefill_done(id, Clock::now(), seconds, cached_tokens);
        collect(wakes, Clock::now());
    }
    deliver(std::move(wakes));
}

void Cluster::finished(RequestId id, InstanceId decode, double token_seconds) {
    Wakes wakes;
    {
        Lock lock(mutex_);
        const Time now = Clock::now();
        if (token_seconds > 0) scheduler_.token_time(decode, token_seconds, now);
        scheduler_.finished(id, now);
        waiting_.erase(id);
        collect(wakes, now);
        forget_gone();
    }
    deliver(std::move(wakes));
}

void Cluster::cancel(RequestId id) {
    Wakes wakes;
    {
        Lock lock(mutex_);
        scheduler_.cancel(id, Clock::now());
        waiting_.erase(id);
        collect(wakes, Clock::now());
        forget_gone();
    }
    deliver(std::move(wakes));
}

void Cluster::report(const Placement& placement, Blame blame) {
    Lock lock(mutex_);
    const Time now = Clock::now();
    if (blame == Blame::kPrefill) return scheduler_.instance_failed(placement.prefill, now);
    if (blame == Blame::kDecode) return scheduler_.instance_failed(placement.decode, now);
    scheduler_.instance_succeeded(placement.prefill);
    scheduler_.instance_succeeded(placement.decode);
    if (blame == Blame::kNobody) scheduler_.pair_succeeded(placement.prefill, placement.decode);
    else if (placement.prefill != placement.decode) scheduler_.pair_failed(placement.prefill, placement.decode, now);
    else scheduler_.instance_failed(placement.prefill, now);
}

void Cluster::pump() {
    Wakes wakes;
    {
        Lock lock(mutex_);
        collect(wakes, Clock::now());
    }
    deliver(std::move(wakes));
}

void Cluster::collect(Wakes& wakes, Time now) {
    for (const Scheduler::Start& start : scheduler_.take_ready(now)) {
        const auto found = waiting_.find(start.request);
        if (found == waiting_.end()) continue;
        wakes.ready.push_back(std::move(found->second));
        waiting_.erase(found);
    }
    wakes.next = scheduler_.next_ready();
    metrics_.waiting.set(static_cast<int64_t>(scheduler_.waiting()));
}

void Cluster::deliver(Wakes wakes) {
    for (const auto& wake : wakes.ready) wake();
    if (wakes.next && next_wake_) next_wake_(*wakes.next);
}

/// Endpoints of instances that the scheduler has let go; requests that still use one hold it themselves.
void Cluster::forget_gone() {
    std::erase_if(endpoints_, [&](const auto& entry) { return scheduler_.find(entry.first) == nullptr; });
    std::erase_if(failed_probes_, [&](const auto& entry) { return scheduler_.find(entry.first) == nullptr; });
}

std::vector<Cluster::Member> Cluster::members() const {
    Lock lock(mutex_);
    const Time now = Clock::now();
    std::vector<Member> members;
    for (const InstanceId id : scheduler_.instances()) {
        const Instance& instance = *scheduler_.find(id);
        members.push_back({.id = id,
                           .endpoint = endpoints_.at(id),
                           .role = instance.spec.role,
                           .draining = instance.draining,
                           .removed = instance.removed,
                           .healthy = instance.healthy,
                           .breaker = instance.breaker.state(now),
                           .waiting = instance.waiting.size(),
                           .prefilling = instance.prefilling,
                           .decoding = instance.decoding.size(),
                           .cached_blocks = scheduler_.cache().size(id),
                           .work_seconds = std::max(0.0, std::chrono::duration<double>(instance.busy_until - now).count())});
    }
    return members;
}

void Cluster::probed(InstanceId id, const Endpoint* endpoint, bool ok) {
    Lock lock(mutex_);
    const auto found = endpoints_.find(id);
    if (found == endpoints_.end() || found->second->name != endpoint->name) return;  // its number is somebody else's by now
    int& failures = failed_probes_[id];
    failures = ok ? 0 : failures + 1;
    if (failures == 0 || failures == kProbesToFail) scheduler_.set_healthy(id, ok);
    if (ok) scheduler_.instance_answered(id, Clock::now());
}

void Cluster::learned_engine_id(const Endpoint& endpoint, const std::string& engine_id) {
    Lock lock(mutex_);
    for (auto& [id, known] : endpoints_) {
        if (known->name != endpoint.name || known->engine_id == engine_id) continue;
        auto changed = std::make_shared<Endpoint>(*known);
        changed->engine_id = engine_id;
        known = std::move(changed);
    }
}

void Cluster::with_cache(const std::function<void(PrefixIndex& cache, const std::function<InstanceId(std::string_view)>& find)>& work) {
    Lock lock(mutex_);
    Scheduler& scheduler = scheduler_;
    work(scheduler.cache(), [&scheduler](std::string_view name) { return scheduler.find(name); });
}

}  // namespace mooncake::conductor
