// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "store/master/ops/task_ops.h"

namespace mooncake::store {

namespace {

const Drain* find_drain(const MasterState& state, const JobId& job) {
    const auto found = std::find_if(state.drains().begin(), state.drains().end(), [&](const Drain& one) { return one.id == job; });
    return found == state.drains().end() ? nullptr : &*found;
}

DrainView view_of(const Drain& drain) {
    return {.info = {.id = drain.id,
                     .status = drain.status,
                     .segments = drain.names,
                     .succeeded = drain.succeeded,
                     .failed = drain.failed,
                     .blocked = drain.blocked,
                     .active = drain.active,
                     .migrated_bytes = drain.migrated_bytes,
                     .message = drain.message},
            .created = drain.created,
            .updated = drain.updated};
}

}  // namespace

DrainReply create_drain(Transaction& transaction, const DrainRequest& request, Time now) {
    const MasterState& state = transaction.state();
    const SegmentTable& segments = state.segments();
    if (request.segments.empty() || request.concurrency == 0) return {.code = StoreCode::kInvalidParams};
    DrainStarted change{.job = state.next_job(), .names = request.segments, .concurrency = request.concurrency, .now = now};
    for (const std::string& name : request.segments) {
        const std::vector<SegmentNumber> numbers = segments.find_memory(name);
        if (numbers.empty()) return {.code = StoreCode::kSegmentNotFound};
        change.segments.insert(change.segments.end(), numbers.begin(), numbers.end());
        change.segment_names.insert(change.segment_names.end(), numbers.size(), name);
    }
    for (const SegmentNumber number : change.segments)
        if (segments[number].status != SegmentStatus::kOk) return {.code = StoreCode::kUnavailableInCurrentStatus};
    for (const std::string& name : request.targets) {
        const std::vector<SegmentNumber> numbers = segments.find_memory(name);
        const bool drained = std::find(request.segments.begin(), request.segments.end(), name) != request.segments.end();
        if (numbers.empty()) return {.code = StoreCode::kSegmentNotFound};
        if (drained) return {.code = StoreCode::kInvalidParams};
        change.destination.insert(change.destination.end(), numbers.begin(), numbers.end());
    }
    for (const SegmentNumber number : change.segments)
        transaction.apply(SegmentStatusSet{.segment = number, .status = SegmentStatus::kDraining, .now = now});
    const JobId job = change.job;
    transaction.apply(std::move(change));
    return {.job = job};
}

StoreCode cancel_drain(Transaction& transaction, const JobId& job, Time now) {
    const MasterState& state = transaction.state();
    const Drain* drain = find_drain(state, job);
    if (drain == nullptr) return StoreCode::kJobNotFound;
    if (drain->status != DrainStatus::kRunning) return StoreCode::kUnavailableInCurrentStatus;
    for (const SegmentNumber number : drain->segments) {
        if (!state.segments().exists(number)) continue;
        const SegmentStatus status = state.segments()[number].status;
        if (status == SegmentStatus::kDraining || status == SegmentStatus::kDrained)
            transaction.apply(SegmentStatusSet{.segment = number, .status = SegmentStatus::kOk, .now = now});
    }
    transaction.apply(DrainFinished{.job = job, .status = DrainStatus::kCancelled, .now = now});
    return StoreCode::kOk;
}

std::optional<DrainView> query_drain(const MasterState& state, const JobId& job) {
    const Drain* drain = find_drain(state, job);
    if (drain == nullptr) return std::nullopt;
    return view_of(*drain);
}

std::vector<DrainView> list_drains(const MasterState& state) {
    std::vector<DrainView> drains;
    for (const Drain& drain : state.drains()) drains.push_back(view_of(drain));
    return drains;
}

}  // namespace mooncake::store
