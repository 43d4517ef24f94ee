// SPDX-License-Identifier: Apache-2.0
#include "conductor/schedule/scheduler.h"

#include <algorithm>
#include <cmath>

namespace mooncake::conductor {

namespace {

double seconds_of(Duration duration) noexcept { return std::chrono::duration<double>(duration).count(); }

Duration duration_of(double seconds) noexcept { return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds)); }

bool contains(const std::vector<InstanceId>& ids, InstanceId id) noexcept { return std::find(ids.begin(), ids.end(), id) != ids.end(); }

}  // namespace

Scheduler::Scheduler(SchedulerOptions options) : options_(std::move(options)), tenants_(options_.tenant), random_(options_.seed) {}

std::variant<Placement, Rejection> Scheduler::submit(Request request, Time now) {
    MC_CHECK(!jobs_.contains(request.id));
    if (waiting_ >= options_.waiting_max) return Rejection{RejectReason::kQueueFull, 1};
    if (const auto seconds = tenants_.admit(request.tenant, request.tokens, now)) {
        return Rejection{RejectReason::kTenant, std::max(1.0, std::ceil(*seconds))};
    }
    const RequestId id = request.id;
    Job& job = jobs_.emplace(id, Job{.request = std::move(request), .submitted = now, .bound = now}).first->second;
    auto placed = place(job, {}, now);
    if (std::holds_alternative<Rejection>(placed)) {
        tenants_.release(job.request.tenant, job.request.tokens);
        jobs_.erase(id);
    }
    return placed;
}

std::variant<Placement, Rejection> Scheduler::place_again(RequestId id, const Avoid& avoid, Time now) {
    Job& job = jobs_.at(id);
    abandon_trials(job.placement);  // of those that nobody blames; who failed has been told
    unbind(job, now);
    auto placed = place(job, avoid, now);
    if (std::holds_alternative<Rejection>(placed)) {
        tenants_.release(job.request.tenant);
        jobs_.erase(id);
    }
    return placed;
}

std::variant<Placement, Rejection> Scheduler::place(Job& job, const Avoid& avoid, Time now) {
    Avoid avoided = avoid;
    while (true) {
        const std::vector<Offer> offers = make_offers(job, avoided, now);
        const Offer* offer = choose_offer(offers, options_.policy, turn_, random_());
        if (offer == nullptr) return Rejection{RejectReason::kNobody, 1};
        Placement placement{.prefill = offer->instance,
                            .reused_blocks = offer->reused_blocks,
                            .local_blocks = offer->local_blocks,
                            .transfer_seconds = offer->transfer,
                            .ttft_seconds = offer->ttft(overlaps())};
        if (options_.decode) {
            const Time begin = now + duration_of(placement.ttft_seconds);
            placement.decode = choose_decode(job, placement.prefill, avoided, begin, now);
            if (placement.decode == kNoInstance) {
                avoided.prefill.push_back(placement.prefill);  // perhaps another one can reach a decode instance
                continue;
            }
            placement.tbt_seconds = predict_tbt(placement.decode, job.request, begin, now);
        }
        const bool admitted = job.placement.prefill != kNoInstance;  // once admitted, it stays so
        if (const auto rejected = admission(job.request, placement, now); rejected && !admitted) return *rejected;
        ++turn_;
        bind(job, *offer, placement, now);
        return placement;
    }
}

std::vector<Offer> Scheduler::make_offers(const Job& job, const Avoid& avoid, Time now) {
    cache_.match(job.request.blocks, matched_);
    OfferTerms terms{.request = &job.request,
                     .best_blocks = job.request.store_blocks,
                     .kv_bytes_per_token = options_.shape.kv_bytes_per_token(),
                     .copy_bytes_per_second = options_.copy_bytes_per_second,
                     .copy_threshold = options_.copy_threshold,
                     .policy = options_.policy};
    for (const uint32_t length : matched_) terms.best_blocks = std::max(terms.best_blocks, length);
    std::vector<Offer> offers;
    for (InstanceId id = 0; id < instances_.size(); ++id) {
        const auto& instance = instances_[id];
        if (!instance || !prefills(instance->spec.role) || !instance->takes_requests(now) || contains(avoid.prefill, id)) continue;
        terms.local_blocks = matched_[id];
        offers.push_back(make_offer(id, job, terms, now));
    }
    return offers;
}

Offer Scheduler::make_offer(InstanceId id, const Job& job, const OfferTerms& terms, Time now) const {
    const Instance& instance = *instances_[id];
    Offer offer{.instance = id, .local_blocks = terms.local_blocks};
    offer.reused_blocks = blocks_to_reuse(terms, instance.prefill_cost);
    offer.transfer = copy_seconds(terms, offer.reused_blocks);
    offer.compute = instance.prefill_cost.predict(job.request.tokens, tokens_in(job.request, offer.reused_blocks));
    offer.wait = std::max(0.0, seconds_of(instance.busy_until - now));
    offer.load = offer.wait;
    const Order own = order_of(job, offer.compute.occupancy);
    for (const RequestId other_id : instance.waiting) {
        const Job& other = jobs_.at(other_id);
        const double work = other.compute.occupancy + (overlaps() ? 0 : other.placement.transfer_seconds);
        offer.load += work;
        if (order_of(other, other.compute.occupancy) <= own) offer.wait += work;
        else offer.delay += offer.compute.occupancy;
    }
    return offer;
}

/// Constant while a request waits: what it gains by waiting all others gain as well.
Scheduler::Order Scheduler::order_of(const Job& job, double occupancy) const {
    const double submitted = seconds_of(job.submitted.time_since_epoch());
    if (!orders_by_length(options_.policy)) return {job.request.priority, submitted};
    return {job.request.priority, occupancy + options_.aging * submitted};
}

bool Scheduler::fit_to_decode(InstanceId id, InstanceId prefill, const Job& job, const Avoid& avoid, Time begin, Time now) const {
    const auto& instance = instances_[id];
    if (!instance || !decodes(instance->spec.role) || contains(avoid.decode, id)) return false;
    // The breaker of the prefill instance was asked already.
    if (id != prefill && !instance->takes_requests(now)) return false;
    const auto pair = pairs_.find({prefill, id});
    if (pair != pairs_.end() && !pair->second.allows(now)) return false;
    if (instance->spec.kv_tokens_max == 0) return true;
    const uint64_t own = job.request.tokens + static_cast<uint64_t>(expected_output(job.request));
    return instance->tokens_from(begin, now) + own <= instance->spec.kv_tokens_max;
}

InstanceId Scheduler::choose_decode(const Job& job, InstanceId prefill, const Avoid& avoid, Time begin, Time now) const {
    if (avoid.keep_decode < instances_.size() && fit_to_decode(avoid.keep_decode, prefill, job, avoid, begin, now))
        return avoid.keep_decode;
    InstanceId best = kNoInstance;
    double best_tbt = 0;
    for (InstanceId id = 0; id < instances_.size(); ++id) {
        if (id == prefill || !fit_to_decode(id, prefill, job, avoid, begin, now)) continue;
        const double tbt = predict_tbt(id, job.request, begin, now);
        if (best != kNoInstance && tbt >= best_tbt) continue;
        best = id;
        best_tbt = tbt;
    }
    // One that does both serves a request alone only where there is nobody to share it with.
    if (best == kNoInstance && fit_to_decode(prefill, prefill, job, avoid, begin, now)) return prefill;
    return best;
}

double Scheduler::predict_tbt(InstanceId decode, const Request& request, Time begin, Time now) const {
    const DecodeLoad load = instances_[decode]->load_at(begin, now);
    return instances_[decode]->decode_cost.predict(load.requests + 1, load.tokens + static_cast<double>(request.tokens));
}

std::optional<Rejection> Scheduler::admission(const Request& request, const Placement& placement, Time now) const {
    const double share = options_.share_of_target[static_cast<size_t>(request.priority)];
    if (options_.ttft_target && placement.ttft_seconds > *options_.ttft_target * share) {
        return Rejection{RejectReason::kTtft, std::max(1.0, std::ceil(placement.ttft_seconds - *options_.ttft_target * share))};
    }
    if (!options_.tbt_target || placement.decode == kNoInstance || placement.tbt_seconds <= *options_.tbt_target * share)
        return std::nullopt;
    Time first_end = Time::max();
    for (const DecodeStay& stay : instances_[placement.decode]->decoding) first_end = std::min(first_end, std::max(stay.end, now));
    const double seconds = first_end == Time::max() ? 1 : seconds_of(first_end - now);
    return Rejection{RejectReason::kTbt, std::max(1.0, std::ceil(seconds))};
}

void Scheduler::bind(Job& job, const Offer& offer, const Placement& placement, Time now) {
    job.placement = placement;
    job.stage = Stage::kWaiting;
    job.bound = now;
    job.compute = offer.compute;
    Instance& prefill = at(placement.prefill);
    prefill.breaker.begin(now);
    prefill.waiting.push_back(job.request.id);
    ++prefill.jobs;
    ++waiting_;
    cache_.use(placement.prefill, job.request.blocks);
    if (placement.decode == kNoInstance) return;
    Instance& decode = at(placement.decode);
    ++decode.jobs;
    if (placement.decode != placement.prefill) decode.breaker.begin(now);
    const auto pair = pairs_.find({placement.prefill, placement.decode});
    if (pair != pairs_.end()) pair->second.begin(now);
    const Time begin = now + duration_of(placement.ttft_seconds);
    decode.decoding.push_back({.request = job.request.id,
                               .begin = begin,
                               .end = begin + duration_of(expected_output(job.request) * placement.tbt_seconds),
                               .tokens = job.request.tokens + static_cast<uint64_t>(expected_output(job.request))});
}

void Scheduler::unbind(Job& job, Time now) {
    const Placement placement = job.placement;
    Instance& prefill = at(placement.prefill);
    if (job.stage == Stage::kWaiting) {
        std::erase(prefill.waiting, job.request.id);
        --waiting_;
    } else if (job.stage == Stage::kPrefilling) {
        leave_prefill(job, now);
    }
    job.stage = Stage::kDecoding;
    if (placement.decode != kNoInstance) {
        std::erase_if(at(placement.decode).decoding, [&](const DecodeStay& stay) { return stay.request == job.request.id; });
        --at(placement.decode).jobs;
        if (placement.decode != placement.prefill) free_if_gone(placement.decode);
    }
    --prefill.jobs;
    free_if_gone(placement.prefill);
}

void Scheduler::leave_prefill(const Job& job, Time now) {
    Instance& instance = at(job.placement.prefill);
    --instance.prefilling;
    instance.prefilling_seconds = instance.prefilling == 0 ? 0 : std::max(0.0, instance.prefilling_seconds - job.compute.occupancy);
    const Time expected = now + duration_of(instance.prefilling_seconds);
    // What is left runs one after the other; in a pipeline it runs already.
    instance.busy_until = instance.spec.pipeline.stages <= 1 ? expected : std::min(instance.busy_until, expected);
}

bool Scheduler::may_start(const Instance& instance, Time now) const noexcept {
    return !instance.waiting.empty() && instance.prefilling < options_.prefilling_max && instance.busy_until <= now + options_.window;
}

std::vector<Scheduler::Start> Scheduler::take_ready(Time now) {
    std::vector<Start> started;
    if (waiting_ == 0) return started;
    for (auto& instance : instances_) {
        while (instance && may_start(*instance, now)) {
            const auto first = std::min_element(instance->waiting.begin(), instance->waiting.end(), [&](RequestId a, RequestId b) {
                const Job &one = jobs_.at(a), &other = jobs_.at(b);
                return order_of(one, one.compute.occupancy) < order_of(other, other.compute.occupancy);
            });
            Job& job = jobs_.at(*first);
            instance->waiting.erase(first);
            started.push_back(start(job, now));
        }
    }
    return started;
}

Scheduler::Start Scheduler::start(Job& job, Time now) {
    Instance& instance = at(job.placement.prefill);
    --waiting_;
    job.stage = Stage::kPrefilling;
    const double waited = overlaps() ? seconds_of(now - job.bound) : 0;  // the copy was under way meanwhile
    const double copying = std::max(0.0, job.placement.transfer_seconds - waited);
    const Time begin = std::max(now, instance.busy_until);
    instance.busy_until = begin + duration_of(copying + job.compute.occupancy);
    ++instance.prefilling;
    instance.prefilling_seconds += job.compute.occupancy;
    return {.request = job.request.id, .expected_seconds = seconds_of(begin - now) + copying + job.compute.latency};
}

std::optional<Time> Scheduler::next_ready() const {
    std::optional<Time> next;
    for (const auto& instance : instances_) {
        if (!instance || instance->waiting.empty() || instance->prefilling >= options_.prefilling_max) continue;
        const Time when = instance->busy_until - options_.window;
        if (!next || when < *next) next = when;
    }
    return next;
}

void Scheduler::prefill_done(RequestId id, Time now, double seconds, std::optional<uint64_t> prefix_tokens) {
    const auto found = jobs_.find(id);
    if (found == jobs_.end() || found->second.stage != Stage::kPrefilling) return;
    Job& job = found->second;
    const Placement placement = job.placement;
    Instance& prefill = at(placement.prefill);
    prefill.prefill_cost.observe(job.request.tokens, prefix_tokens.value_or(tokens_in(job.request, placement.reused_blocks)),
                                 seconds - placement.transfer_seconds);
    leave_prefill(job, now);
    job.stage = Stage::kDecoding;
    if (placement.decode != kNoInstance) {
        for (DecodeStay& stay : at(placement.decode).decoding) {
            if (stay.request != id) continue;
            stay.end = now + (stay.end - stay.begin);
            stay.begin = now;
        }
    }
}

void Scheduler::token_time(InstanceId decode, double seconds, Time now) {
    if (find(decode) == nullptr) return;
    const DecodeLoad load = at(decode).load_at(now, now);
    at(decode).decode_cost.observe(std::max(1.0, load.requests), load.tokens, seconds);
}

double Scheduler::expected_output(const Request& request) const noexcept {
    return request.output_tokens > 0 ? static_cast<double>(request.output_tokens) : options_.output_tokens;
}

void Scheduler::finished(RequestId id, Time now) { end(id, now); }

void Scheduler::cancel(RequestId id, Time now) {
    const auto found = jobs_.find(id);
    if (found == jobs_.end()) return;
    abandon_trials(found->second.placement);
    end(id, now);
}

void Scheduler::abandon_trials(const Placement& placement) {
    at(placement.prefill).breaker.abandoned();
    if (placement.decode != kNoInstance) at(placement.decode).breaker.abandoned();
    const auto pair = pairs_.find({placement.prefill, placement.decode});
    if (pair != pairs_.end()) pair->second.abandoned();
}

void Scheduler::end(RequestId id, Time now) {
    const auto found = jobs_.find(id);
    if (found == jobs_.end()) return;
    unbind(found->second, now);
    tenants_.release(found->second.request.tenant);
    jobs_.erase(found);
}

const Placement* Scheduler::placement(RequestId id) const {
    const auto found = jobs_.find(id);
    return found == jobs_.end() ? nullptr : &found->second.placement;
}

}  // namespace mooncake::conductor
