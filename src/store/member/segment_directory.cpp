// SPDX-License-Identifier: Apache-2.0
#include "store/member/segment_directory.h"

#include <algorithm>

namespace mooncake::store {

namespace {

constexpr Duration kRetryMin = 50ms, kRetryMax = 5s;
constexpr Duration kTellInterval = 100ms;
constexpr size_t kEpochsRemembered = 8;
constexpr size_t kAbsentMax = 65'536;

Duration pause_after(uint32_t failures) { return std::min<Duration>(kRetryMin * (1 << std::min(failures - 1, 10U)), kRetryMax); }

Unexpected stale(uint64_t epoch) { return fail(Code::kStale, "segment numbers of the master's life {} mean nothing any more", epoch); }
Unexpected unknown(uint32_t number) { return fail(Code::kNotFound, "no segment with number {}", number); }

}  // namespace

SegmentDirectory::SegmentDirectory(MasterApi& master, ClientId client) : master_(master), teller_(master, client, kTellInterval) {}

Result<SegmentHandle> SegmentDirectory::find(uint64_t epoch, uint32_t number, Deadline deadline) {
    if (auto known = look_up(epoch, number)) return std::move(*known);
    uint64_t wanted = 0;
    for (bool fresh = false; !fresh;) {
        MC_ASSIGN_OR_RETURN(fresh, await_list(epoch, number, wanted, deadline));
        // A list that somebody had asked for before may do; where it does not, it proves nothing.
        if (auto known = look_up(epoch, number)) return std::move(*known);
    }
    remember_absent(epoch, number);
    auto known = look_up(epoch, number);
    if (!known) return stale(epoch);
    return std::move(*known);
}

std::optional<Result<SegmentHandle>> SegmentDirectory::look_up(uint64_t epoch, uint32_t number) const {
    ReadLock lock(mutex_);
    if (epoch == epoch_) {
        const auto found = by_number_.find(number);
        if (found != by_number_.end()) return found->second;
        if (absent_.contains(number)) return unknown(number);
    } else if (std::find(over_.begin(), over_.end(), epoch) != over_.end()) {
        return stale(epoch);
    }
    return std::nullopt;
}

void SegmentDirectory::remember_absent(uint64_t epoch, uint32_t number) {
    WriteLock lock(mutex_);
    if (epoch != epoch_) return;
    if (absent_.size() >= kAbsentMax) absent_.clear();
    absent_.insert(number);
}

Result<bool> SegmentDirectory::await_list(uint64_t epoch, uint32_t number, uint64_t& wanted, Deadline deadline) MC_NO_THREAD_ANALYSIS {
    std::unique_lock lock(flight_mutex_);
    if (wanted == 0) wanted = begun_ + 1;
    if (flying_) {
        const uint64_t before = ended_;
        const auto done = [&]() MC_NO_THREAD_ANALYSIS { return ended_ != before; };
        if (deadline.is_never()) landed_.wait(lock, done);
        else if (!landed_.wait_until(lock, deadline.at(), done)) return fail(Code::kTimedOut, "the list of segments did not come in time");
        // The other caller's deadline is not ours.
        if (failure_ && failure_->code() != Code::kTimedOut) return Unexpected(*failure_);
        return !failure_ && ended_ >= wanted;
    }
    if (look_up(epoch, number)) return false;  // the list landed between our look and this lock
    flying_ = true;
    const uint64_t flight = ++begun_;
    lock.unlock();
    const auto list = master_.segments(deadline);
    if (list) take_list(*list);
    lock.lock();
    flying_ = false;
    ended_ = flight;
    failure_ = list ? std::nullopt : std::optional(list.error());
    landed_.notify_all();
    if (!list) return Unexpected(list.error());
    return true;
}

void SegmentDirectory::take_list(const SegmentsReply& list) {
    WriteLock lock(mutex_);
    const bool same = list.epoch == epoch_;
    if (!same) {
        if (epoch_ != 0) over_.push_back(epoch_);
        if (over_.size() > kEpochsRemembered) over_.erase(over_.begin());
        std::erase(over_, list.epoch);
        epoch_ = list.epoch;
        absent_.clear();
    }
    std::unordered_map<uint32_t, SegmentHandle> before;
    before.swap(by_number_);
    std::unordered_map<SegmentId, Health> suspects;
    for (const SegmentsReply::Entry& entry : list.segments) {
        const auto known = before.find(entry.number);
        const bool unchanged = same && known != before.end();
        by_number_[entry.number] = unchanged ? known->second
                                             : std::make_shared<const SegmentRecord>(
                                                   SegmentRecord{.number = entry.number, .spec = entry.segment});
        const auto suspect = suspects_.find(entry.segment.id);
        if (suspect == suspects_.end()) continue;
        Health& health = suspects[entry.segment.id] = suspect->second;
        health.number = entry.number;
    }
    suspects_.swap(suspects);
    suspected_.store(suspects_.size(), std::memory_order_release);
}

void SegmentDirectory::forget_all() {
    WriteLock lock(mutex_);
    epoch_ = 0;
    by_number_.clear();
    absent_.clear();
    for (auto& [id, health] : suspects_) health.number = 0;
}

void SegmentDirectory::failed(const SegmentHandle& segment, Time now) {
    {
        WriteLock lock(mutex_);
        Health& health = suspects_[segment->spec.id];
        if (health.failures != 0 && now < health.retry_at) return;
        ++health.failures;
        health.retry_at = now + pause_after(health.failures);
        const auto known = by_number_.find(segment->number);
        if (known != by_number_.end() && known->second->spec.id == segment->spec.id) health.number = segment->number;
        suspected_.store(suspects_.size(), std::memory_order_release);
    }
    teller_.tell(segment->spec.id);
}

void SegmentDirectory::worked(const SegmentHandle& segment) {
    if (all_reachable()) return;
    {
        ReadLock lock(mutex_);
        if (!suspects_.contains(segment->spec.id)) return;
    }
    WriteLock lock(mutex_);
    suspects_.erase(segment->spec.id);
    suspected_.store(suspects_.size(), std::memory_order_release);
}

bool SegmentDirectory::reachable(const SegmentHandle& segment, Time now) const {
    if (all_reachable()) return true;
    ReadLock lock(mutex_);
    const auto found = suspects_.find(segment->spec.id);
    return found == suspects_.end() || now >= found->second.retry_at;
}

std::optional<Duration> SegmentDirectory::trial(const SegmentHandle& segment) const {
    if (all_reachable()) return std::nullopt;
    ReadLock lock(mutex_);
    const auto found = suspects_.find(segment->spec.id);
    if (found == suspects_.end()) return std::nullopt;
    return std::max<Duration>(kRetryMin, pause_after(found->second.failures) / 4);
}

std::vector<uint32_t> SegmentDirectory::unreachable(Time now, std::span<const SegmentHandle> also) const {
    std::vector<uint32_t> numbers;
    if (all_reachable()) return numbers;
    const auto named = [&](const SegmentId& id) {
        return std::any_of(also.begin(), also.end(), [&](const SegmentHandle& segment) { return segment->spec.id == id; });
    };
    ReadLock lock(mutex_);
    for (const auto& [id, health] : suspects_)
        if (health.number != 0 && (now < health.retry_at || named(id))) numbers.push_back(health.number);
    return numbers;
}

}  // namespace mooncake::store
