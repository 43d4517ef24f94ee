// SPDX-License-Identifier: Apache-2.0
#include "store/node/tier_teller.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/thread.h"

namespace mooncake::store {

TierTeller::TierTeller(PoolAccess& pool, Hooks hooks)
    : pool_(pool), hooks_(std::move(hooks)), thread_(start_thread("mc-disk-tell", [this](const std::stop_token& stop) { run(stop); })) {}

void TierTeller::speak_for(SegmentId segment) {
    Lock lock(mutex_);
    segment_ = segment;
}

void TierTeller::ended(const CopyEnd& end, const WriteFence::Mark& asked) {
    Lock lock(mutex_);
    if (const End one{.end = end, .epoch = asked.epoch}; !is_void(one)) ends_.push_back(one);
    changed_.notify_one();
}

void TierTeller::gone(std::span<const TierObject> objects) {
    Lock lock(mutex_);
    for (const TierObject& object : objects) {
        if (gone_.size() >= kGoneKept) {
            MC_LOG_WARNING_EVERY(10s, "no master listens: it will not be told of some values that went from the disk");
            gone_.pop_front();
        }
        gone_.push_back({std::string(object.tenant), std::string(object.key), object.generation});
    }
    changed_.notify_one();
}

void TierTeller::want_under_way(uint64_t bytes) {
    Lock lock(mutex_);
    window_bytes_ = bytes;
}

void TierTeller::master_lost() {
    Lock lock(mutex_);
    has_master_ = false;
}

void TierTeller::master_found(uint64_t epoch) {
    Lock lock(mutex_);
    has_master_ = true;
    epoch_ = epoch;
    std::erase_if(ends_, [this](const End& end) MC_REQUIRES(mutex_) { return is_void(end); });
    changed_.notify_one();
}

void TierTeller::stop() {
    if (!thread_.joinable()) return;
    thread_.request_stop();
    thread_.join();
}

void TierTeller::run(const std::stop_token& stop) {
    Time idle_at{};
    while (!stop.stop_requested()) {
        {
            std::unique_lock lock(mutex_);
            changed_.wait_for(lock, stop, kIdle,
                              [this]() MC_NO_THREAD_ANALYSIS { return has_master_ && (!ends_.empty() || !gone_.empty()); });
        }
        if (stop.stop_requested()) return;
        if (const Time now = Clock::now(); now >= idle_at) {
            hooks_.idle();
            idle_at = now + kIdle;
        }
        if (!(tell_ends() && tell_gone()) && !pool_.pause(kPause)) return;
    }
}

/// False: the master did not answer.
bool TierTeller::tell_ends() {
    std::vector<End> taken;
    std::vector<CopyEnd> ends;
    CopiesEnd request{.client = pool_.id};
    {
        Lock lock(mutex_);
        if (!has_master_ || ends_.empty()) return true;
        const auto last = ends_.begin() + static_cast<ptrdiff_t>(std::min(ends_.size(), kEndsMax));
        taken.assign(ends_.begin(), last);
        ends_.erase(ends_.begin(), last);
        request.window_bytes = window_bytes_;
    }
    for (const End& one : taken) ends.push_back(one.end);
    request.items = ends;
    const auto told = pool_.ask_twice(MasterCall::kEndCopies, [&] { return pool_.master->end_copies(request, pool_.rpc_deadline()); });
    if (told) return true;
    MC_LOG_WARNING_EVERY(1s, "the master does not hear of {} finished copies: {}", ends.size(), told.error().to_string());
    Lock lock(mutex_);
    std::erase_if(taken, [this](const End& end) MC_REQUIRES(mutex_) { return is_void(end); });
    ends_.insert(ends_.begin(), taken.begin(), taken.end());
    return false;
}

bool TierTeller::tell_gone() {
    std::vector<Gone> told;
    SegmentId segment;
    {
        Lock lock(mutex_);
        segment = segment_;
        if (!has_master_) return true;
        for (size_t bytes = 0; !gone_.empty() && told.size() < kGoneMax && bytes < kTextBytesMax; gone_.pop_front()) {
            bytes += gone_.front().key.size() + gone_.front().tenant.size();
            told.push_back(std::move(gone_.front()));
        }
    }
    // A master that has heard of it, though we were not answered, may have ordered it anew: to hear it twice would cost it the new one.
    std::erase_if(told, [this](const Gone& one) { return hooks_.is_back(one.generation); });
    if (told.empty()) return true;
    std::vector<GoneReplica> items;
    items.reserve(told.size());
    for (const Gone& one : told) items.push_back({.tenant = one.tenant, .key = one.key, .generation = one.generation});
    const ReplicasGone request{.client = pool_.id, .segment = segment, .items = items};
    const auto answer = pool_.ask(MasterCall::kReplicasGone, [&] { return pool_.master->replicas_gone(request, pool_.rpc_deadline()); });
    if (answer) return true;
    MC_LOG_WARNING_EVERY(1s, "the master does not hear of {} values that went from the disk: {}", told.size(), answer.error().to_string());
    Lock lock(mutex_);
    for (auto one = told.rbegin(); one != told.rend() && gone_.size() < kGoneKept; ++one) gone_.push_front(std::move(*one));
    return false;
}

}  // namespace mooncake::store
