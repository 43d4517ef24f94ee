// SPDX-License-Identifier: Apache-2.0
#include "store/node/tier_orders.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "base/thread.h"
#include "store/node/promotion.h"
#include "store/protocol/stored_form.h"

namespace mooncake::store {

namespace {

constexpr Duration kWritePatience = 30s;  // before the disk has begun with it
constexpr Duration kFencePause = 10ms;
constexpr Duration kWindowTime = 500ms;                                 // what the disk takes in so long may be under way
constexpr StoreCode kGivenUp = StoreCode::kUnavailableInCurrentStatus;  // since the master was lost

/// What a disk's answer means to the master.
StoreCode code_of(Code code) {
    switch (code) {
        case Code::kOk:
        case Code::kAlreadyExists: return StoreCode::kOk;
        case Code::kStale: return StoreCode::kInvalidVersion;
        case Code::kCorrupt: return StoreCode::kChecksumMismatch;
        case Code::kNoSpace:
        case Code::kBusy: return StoreCode::kNoAvailableHandle;
        case Code::kInvalidArgument: return StoreCode::kInvalidParams;
        case Code::kCancelled: return StoreCode::kUnavailableInCurrentStatus;
        default: return StoreCode::kWriteFail;
    }
}

}  // namespace

/// Values that the disk was given together; goes back to the orders' thread when all are answered.
struct TierOrders::Offload final : CompletionHook {
    Offload(TierOrders& orders, std::vector<Outgoing> outgoing) : owner(orders), values(std::move(outgoing)) {}

    void on_done(Completion&) noexcept override {
        std::unique_ptr<Offload> self(this);
        Lock lock(owner.mutex_);
        owner.done_.push_back(std::move(self));
        owner.changed_.notify_all();
    }

    TierOrders& owner;
    std::vector<Outgoing> values;
    std::vector<TierWrite> writes;  // of those that are still wanted
    std::vector<size_t> value_of;   // each write
    const Time begun = Clock::now();
    uint64_t bytes = 0;
    Completion completion{nullptr, this};
};

TierOrders::TierOrders(const Setup& setup)
    : setup_(setup), doubts_(doubt_hooks()), thread_(start_thread("mc-disk-orders", [this](const std::stop_token& stop) { run(stop); })) {
    for (size_t i = 0; i < kPromoters; ++i)
        promoters_.push_back(start_thread(format_text("mc-disk-up-{}", i), [this](const std::stop_token& stop) { promote(stop); }));
}

TierOrders::~TierOrders() { stop(); }

void TierOrders::add(CopyOrder order) {
    const WriteFence::Mark asked = setup_.pool.fence.mark();
    std::optional<CopyEnd> again;
    {
        Lock lock(mutex_);
        if (queue_.size() + promotions_.size() >= kQueueMax) {
            MC_LOG_WARNING_EVERY(1s, "{} copies between tiers are waiting; another is left to time out", queue_.size());
            return;
        }
        const auto [seen, fresh] = seen_.try_emplace(order.task);
        if (!fresh && !seen->second) return;  // it is at it
        if (!fresh) again = {.task = order.task, .code = *seen->second};
        else seen_order_.push_back(order.task);
        if (seen_order_.size() > kRememberedMax) {
            seen_.erase(seen_order_.front());
            seen_order_.pop_front();
        }
        if (!again) queue_.push_back({.order = std::move(order), .asked = asked});
        changed_.notify_all();
    }
    if (again) setup_.teller.ended(*again, asked);
}

void TierOrders::master_lost() {
    std::vector<Job> given_up;
    {
        Lock lock(mutex_);
        for (Job& job : queue_) {
            // One whose order came before it could be obeyed orders it again, and hears nothing of this.
            if (job.asked.epoch == 0) seen_.erase(job.order.task);
            else given_up.push_back(std::move(job));
        }
        for (Job& job : promotions_) {
            under_way_ -= std::min(job.order.length, under_way_);
            given_up.push_back(std::move(job));
        }
        queue_.clear();
        promotions_.clear();
        // For good, also if it is the same master that is found again: it is told so, and orders something else.
        for (const Job& job : given_up)
            if (const auto seen = seen_.find(job.order.task); seen != seen_.end()) seen->second = kGivenUp;
        changed_.notify_all();
    }
    doubts_.forget_all();
    for (const Job& job : given_up) setup_.teller.ended({.task = job.order.task, .code = kGivenUp}, job.asked);
}

void TierOrders::stop() {
    if (!thread_.joinable()) return;
    thread_.request_stop();
    for (std::jthread& promoter : promoters_) promoter.request_stop();
    thread_.join();
    promoters_.clear();
    doubts_.stop();
}

void TierOrders::run(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
        std::vector<std::unique_ptr<Offload>> done;
        std::vector<Job> jobs;
        {
            std::unique_lock lock(mutex_);
            changed_.wait(lock, stop, [this]() MC_NO_THREAD_ANALYSIS {
                return !done_.empty() || (!queue_.empty() && (under_way_ == 0 || under_way_ < window_));
            });
            mutex_.is_held();
            done.swap(done_);
            // Orders may be quicker than the word that their master may be obeyed.
            const WriteFence::Mark now = setup_.pool.fence.mark();
            if (now.epoch == 0 && done.empty()) changed_.wait_for(lock, stop, kFencePause, [] { return false; });
            if (now.epoch != 0 && !stop.stop_requested()) jobs = take(now);
        }
        for (const auto& offload : done) finish(*offload);
        if (!jobs.empty()) begin(std::move(jobs));
    }
}

std::vector<TierOrders::Job> TierOrders::take(const WriteFence::Mark& now) {
    std::vector<Job> jobs;
    while (!queue_.empty() && jobs.size() < kBatchMax && (under_way_ == 0 || under_way_ < window_)) {
        under_way_ += queue_.front().order.length;
        jobs.push_back(std::move(queue_.front()));
        if (jobs.back().asked.epoch == 0) jobs.back().asked = now;  // those of a lost master are not in the queue any more
        queue_.pop_front();
    }
    return jobs;
}

void TierOrders::end(const Job& job, const Outcome& outcome) {
    {
        Lock lock(mutex_);
        if (const auto seen = seen_.find(job.order.task); seen != seen_.end()) seen->second = outcome.code;
        under_way_ -= std::min(job.order.length, under_way_);
        changed_.notify_all();
    }
    setup_.teller.ended({.task = job.order.task, .code = outcome.code, .in_doubt = outcome.in_doubt ? outcome.in_doubt->number : 0},
                        job.asked);
    if (!outcome.in_doubt) return;
    const std::string endpoint = outcome.in_doubt->spec.endpoint;
    doubts_.add({.task = job.order.task}, {&endpoint, 1}, Clock::now() + DoubtfulWrites::kDoubtfulFor);
}

DoubtfulWrites::Hooks TierOrders::doubt_hooks() {
    const auto tell = [this](std::span<const DoubtfulWrites::Write> copies) {
        return std::all_of(copies.begin(), copies.end(), [this](const DoubtfulWrites::Write& copy) { return settled(copy.task); });
    };
    return {.fence = [this](const std::string& endpoint) { return setup_.pool.fence_if_alive(endpoint); }, .tell = tell};
}

bool TierOrders::settled(const TaskId& task) {
    const CopyEnd end{.task = task, .code = StoreCode::kTransferFail};
    const CopiesEnd request{.client = setup_.pool.id, .items = {&end, 1}};
    PoolAccess& pool = setup_.pool;
    return pool.ask_twice(MasterCall::kEndCopies, [&] { return pool.master->end_copies(request, pool.rpc_deadline()); }).has_value();
}

// ---- from memory to the disk

void TierOrders::begin(std::vector<Job> jobs) {
    SegmentLookup segments(setup_.pool);
    std::vector<Outgoing> values;
    for (Job& job : jobs)
        if (auto outgoing = prepare(job, segments)) values.push_back(std::move(*outgoing));
    if (!values.empty()) submit(std::move(values));
}

std::optional<TierOrders::Outgoing> TierOrders::prepare(Job& job, SegmentLookup& segments) {
    const auto pass = setup_.pool.fence.enter(job.asked);
    if (!pass) {
        end(job, {.code = kGivenUp, .in_doubt = {}});
        return std::nullopt;
    }
    const SegmentLookup::Found from = segments.find(pass.epoch(), job.order.source.segment);
    if (from.own && from.own->disk) {
        Lock lock(mutex_);
        promotions_.push_back(std::move(job));
        changed_.notify_all();
        return std::nullopt;
    }
    Outgoing outgoing;
    if (const Outcome outcome = locate(job, pass, segments, outgoing); outcome.code != StoreCode::kOk) {
        setup_.metrics.offload_failures.add();
        end(job, outcome);
        return std::nullopt;
    }
    outgoing.job = std::move(job);
    return outgoing;
}

TierOrders::Outcome TierOrders::locate(const Job& job, const WriteFence::Pass& pass, SegmentLookup& segments, Outgoing& outgoing) {
    const CopyOrder& order = job.order;
    const SegmentLookup::Found from = segments.find(pass.epoch(), order.source.segment);
    const uint64_t bytes = stored_bytes(order.length);
    if (!from.own || order.length == 0 || order.source.offset > from.own->size || bytes > from.own->size - order.source.offset)
        return {.code = StoreCode::kReplicaNotInLocalMemory};
    if (order.targets.size() != 1) return {.code = StoreCode::kInvalidParams};
    const SegmentLookup::Found to = segments.find(pass.epoch(), order.targets[0].segment);
    if (!to.segment || to.segment->spec.id != setup_.disk) return {.code = StoreCode::kSegmentNotFound};
    auto plan = setup_.contents.find_planned(order.generation);
    if (!plan || plan->length != order.length || plan->key != order.key) return {.code = StoreCode::kObjectNotFound};
    outgoing.plan = std::move(*plan);
    outgoing.memory = from.own;
    outgoing.value = {from.own->base + order.source.offset, order.length};
    if (order.checksum != 0) return {};  // the disk compares what it has written with it
    // Nobody could tell whether the memory was used for something else while the disk took its time. It was not before this look at the clock.
    outgoing.copy.reset(new std::byte[order.length]);
    std::memcpy(outgoing.copy.get(), outgoing.value.data(), order.length);
    outgoing.value = {outgoing.copy.get(), order.length};
    return pass.holds() ? Outcome{} : Outcome{.code = StoreCode::kUnavailableInCurrentStatus};
}

void TierOrders::submit(std::vector<Outgoing> values) {
    auto made = std::make_unique<Offload>(*this, std::move(values));
    Offload* const offload = made.get();
    const Time now = Clock::now();
    std::vector<uint64_t> generations;
    for (const Outgoing& value : offload->values) generations.push_back(value.job.order.generation);
    setup_.contents.begin_writes(generations, [&](const std::vector<bool>& wanted) {
        for (size_t i = 0; i < wanted.size(); ++i) {
            if (!wanted[i]) continue;
            const Outgoing& value = offload->values[i];
            offload->writes.push_back(
                {.object = value.plan.object(value.job.order.generation, value.job.order.checksum, now), .value = value.value});
            offload->value_of.push_back(i);
            offload->bytes += value.value.size();
        }
        if (offload->writes.empty()) return;
        (void)made.release();  // it comes back when the disk has answered
        setup_.tier.write(offload->writes, Deadline::after(kWritePatience), offload->completion);
    });
    if (made) finish(*made);
}

void TierOrders::finish(Offload& offload) {
    std::vector<StoreCode> codes(offload.values.size(), StoreCode::kObjectNotFound);  // dropped before the disk was given them
    bool failed = false;
    for (size_t n = 0; n < offload.writes.size(); ++n) {
        const Outgoing& value = offload.values[offload.value_of[n]];
        const Code result = offload.writes[n].result;
        StoreCode& code = codes[offload.value_of[n]];
        code = code_of(result);
        // Who had dropped the value meanwhile may have used its memory for something else.
        const bool dropped = code != StoreCode::kOk && !setup_.contents.find_planned(value.job.order.generation);
        if (dropped) code = StoreCode::kObjectNotFound;
        const bool orphan = setup_.pool.fence.mark().turn != value.job.asked.turn;
        setup_.contents.ended_write(value.job.order.generation, code == StoreCode::kOk, value.plan, orphan);
        if (code == StoreCode::kOk) {
            setup_.metrics.offloaded.add();
            setup_.metrics.offloaded_bytes.add(value.value.size());
        } else if (!dropped) {
            failed = failed || result == Code::kNoSpace || result == Code::kUnavailable || result == Code::kTimedOut;
            setup_.metrics.offload_failures.add();
            MC_LOG_WARNING_EVERY(10s, "the disk did not take the value of '{}': {}", value.plan.key, code_name(result));
        }
    }
    adapt_window(offload, failed);  // told with these ends
    for (size_t i = 0; i < offload.values.size(); ++i) end(offload.values[i].job, {.code = codes[i], .in_doubt = {}});
}

void TierOrders::adapt_window(const Offload& offload, bool failed) {
    if (offload.writes.empty()) return;
    const double seconds = std::max(1e-4, std::chrono::duration<double>(Clock::now() - offload.begun).count());
    const double rate = static_cast<double>(offload.bytes) / seconds;
    // Small groups say little about what a disk can do.
    if (bytes_per_s_ == 0) bytes_per_s_ = static_cast<double>(kWindowFirst) / std::chrono::duration<double>(kWindowTime).count();
    if (rate > bytes_per_s_ || offload.bytes >= kWindowMin / 2) bytes_per_s_ += (rate - bytes_per_s_) / 4;
    if (failed) bytes_per_s_ = 0;
    const auto wanted = static_cast<uint64_t>(bytes_per_s_ * std::chrono::duration<double>(kWindowTime).count());
    const uint64_t window = std::clamp(wanted, kWindowMin, kWindowMax);
    {
        Lock lock(mutex_);
        window_ = window;
    }
    setup_.teller.want_under_way(window);
}

// ---- from the disk to memory

void TierOrders::promote(const std::stop_token& stop) {
    PromotionBuffer buffer;
    while (true) {
        Job job;
        {
            std::unique_lock lock(mutex_);
            changed_.wait(lock, stop, [this]() MC_NO_THREAD_ANALYSIS { return !promotions_.empty(); });
            if (stop.stop_requested()) return;
            mutex_.is_held();
            job = std::move(promotions_.front());
            promotions_.pop_front();
        }
        const PromotionOutcome outcome = promote_value(
            {.pool = setup_.pool, .tier = setup_.tier, .reads = setup_.reads, .order = job.order, .asked = job.asked, .stop = stop},
            buffer);
        if (outcome.code == StoreCode::kOk) {
            setup_.metrics.promoted.add();
            setup_.metrics.promoted_bytes.add(job.order.length);
        } else {
            setup_.metrics.promotion_failures.add();
            MC_LOG_WARNING_EVERY(10s, "the value of '{}' does not come back to memory: {}", job.order.key, store_code_name(outcome.code));
        }
        end(job, {.code = outcome.code, .in_doubt = outcome.in_doubt});
    }
}

}  // namespace mooncake::store
