// SPDX-License-Identifier: Apache-2.0
#include "store/node/copy_worker.h"

#include <algorithm>

#include "base/log.h"
#include "base/memory_probe.h"
#include "base/thread.h"
#include "store/member/write_moves.h"
#include "store/protocol/stored_form.h"

namespace mooncake::store {

namespace {

constexpr uint64_t kStepBytes = 64 * kChunkBytes;

/// False: one of the targets is not known.
bool add_to_all(WriteMoves& moves, const CopyOrder& order, uint64_t epoch, uint64_t offset, std::span<const std::byte> bytes) {
    return std::all_of(order.targets.begin(), order.targets.end(),
                       [&](const ReplicaLocation& target) { return moves.add(0, epoch, target, offset, bytes.data(), bytes.size()); });
}

}  // namespace

CopyWorker::CopyWorker(PoolAccess& pool, bool checksum)
    : pool_(pool), checksum_(checksum), doubts_(doubt_hooks()),
      thread_(start_thread("mc-store-copy", [this](const std::stop_token& stop) { run(stop); })) {}

void CopyWorker::add(CopyOrder order) {
    const WriteFence::Mark asked = pool_.fence.mark();
    {
        Lock lock(mutex_);
        if (queue_.size() >= kQueueMax) {
            MC_LOG_WARNING_EVERY(1s, "{} copies are waiting; another is left to time out", queue_.size());
            return;
        }
        const auto [seen, fresh] = seen_.try_emplace(order.task);
        if (!fresh && !seen->second) return;  // it is at it
        if (fresh) seen_order_.push_back(order.task);
        if (seen_order_.size() > kRememberedMax) {
            seen_.erase(seen_order_.front());
            seen_order_.pop_front();
        }
        queue_.push_back({.order = std::move(order), .asked = asked, .again = !fresh});
    }
    changed_.notify_one();
}

void CopyWorker::stop() {
    if (!thread_.joinable()) return;
    thread_.request_stop();
    thread_.join();
    doubts_.stop();
}

void CopyWorker::run(const std::stop_token& stop) {
    mutex_.lock();
    while (changed_.wait(mutex_, stop, [this]() MC_REQUIRES(mutex_) { return !queue_.empty(); }) && !stop.stop_requested()) {
        const Job job = std::move(queue_.front());
        queue_.pop_front();
        mutex_.unlock();
        carry_out(job);
        mutex_.lock();
    }
    mutex_.unlock();
}

void CopyWorker::carry_out(const Job& job) {
    std::optional<Outcome> outcome;
    if (job.again) {
        Lock lock(mutex_);
        const auto seen = seen_.find(job.order.task);
        if (seen == seen_.end() || !seen->second) return;
        outcome = seen->second;
    } else {
        outcome = copy(job);
        Lock lock(mutex_);
        if (const auto seen = seen_.find(job.order.task); seen != seen_.end()) seen->second = outcome;
    }
    report(job.order.task, *outcome);
    if (job.again) return;
    std::vector<std::string> endpoints;
    for (const SegmentHandle& segment : outcome->in_doubt) endpoints.push_back(segment->spec.endpoint);
    doubts_.add({.task = job.order.task}, endpoints, Clock::now() + DoubtfulWrites::kDoubtfulFor);
}

bool CopyWorker::report(const TaskId& task, const Outcome& outcome) {
    TaskEnd end{.client = pool_.id, .task = task, .code = outcome.code, .message = outcome.message};
    for (const SegmentHandle& segment : outcome.in_doubt) end.in_doubt.push_back(segment->number);
    const auto told = pool_.ask_twice(MasterCall::kEndTask, [&] { return pool_.master->end_task(end, pool_.rpc_deadline()); });
    if (!told) MC_LOG_WARNING_EVERY(1s, "the master does not hear of a finished copy: {}", told.error().to_string());
    return told.has_value();
}

DoubtfulWrites::Hooks CopyWorker::doubt_hooks() {
    const auto tell_master = [this](std::span<const DoubtfulWrites::Write> copies) {
        return std::all_of(copies.begin(), copies.end(), [this](const DoubtfulWrites::Write& copy) { return settled(copy.task); });
    };
    return {.fence = [this](const std::string& endpoint) { return pool_.fence_if_alive(endpoint); }, .tell = tell_master};
}

bool CopyWorker::settled(const TaskId& task) {
    Outcome outcome{.code = StoreCode::kTransferFail};
    {
        Lock lock(mutex_);
        if (const auto seen = seen_.find(task); seen != seen_.end() && seen->second) {
            seen->second->in_doubt.clear();
            outcome = *seen->second;
        }
    }
    return report(task, outcome);
}

CopyWorker::Outcome CopyWorker::copy(const Job& job) {
    const CopyOrder& order = job.order;
    const auto pass = pool_.fence.enter(job.asked);
    const uint64_t epoch = pass.epoch();
    if (!pass) return {.code = StoreCode::kUnavailableInCurrentStatus, .message = "the master was lost"};
    SegmentLookup segments(pool_);
    const SegmentLookup::Found from = segments.find(epoch, order.source.segment);
    const uint64_t length = stored_bytes(order.length);
    if (!from.own || order.source.offset > from.own->size || length > from.own->size - order.source.offset)
        return {.code = StoreCode::kReplicaNotInLocalMemory, .message = "the source is not in this process"};
    const std::byte* const bytes = from.own->base + order.source.offset;
    if (from.own->of_file) return copy_of_file(order, bytes, pass);
    if (checksum_ && order.checksum != 0) {
        std::vector<uint64_t> table;
        const std::span<const std::byte> value(bytes, order.length);
        if (hash_value({&value, 1}, table) != order.checksum) return not_the_value();
    }
    WriteMoves moves(pool_, pass);
    if (!add_to_all(moves, order, epoch, 0, {bytes, length})) return unknown_target();
    return outcome_of(moves.run());
}

CopyWorker::Outcome CopyWorker::copy_of_file(const CopyOrder& order, const std::byte* bytes, const WriteFence::Pass& pass) {
    const uint64_t length = stored_bytes(order.length);
    std::vector<std::byte> step(std::min(length, kStepBytes));
    std::vector<uint64_t> table;
    WriteMoves moves(pool_, pass);
    for (uint64_t at = 0; at < length; at += kStepBytes) {
        const std::span<std::byte> part = std::span(step).first(std::min(length - at, kStepBytes));
        if (!copy_if_there(part.data(), bytes + at, part.size()))
            return {.code = StoreCode::kReplicaNotInLocalMemory, .message = "the file that holds the source was cut off"};
        for (uint64_t chunk = at; chunk < std::min(at + part.size(), order.length); chunk += kChunkBytes)
            table.push_back(hash_bytes(part.subspan(chunk - at, std::min(kChunkBytes, order.length - chunk))));
        if (!add_to_all(moves, order, pass.epoch(), at, part)) return unknown_target();
        if (Outcome outcome = outcome_of(moves.run()); outcome.code != StoreCode::kOk) return outcome;
    }
    const uint64_t checksum = table.size() == 1 ? table[0] : hash_table(table);
    if (checksum_ && order.checksum != 0 && checksum != order.checksum) return not_the_value();
    return {};
}

CopyWorker::Outcome CopyWorker::outcome_of(const std::vector<WriteMoves::Failure>& failures) {
    if (failures.empty()) return {};
    Outcome outcome{.code = StoreCode::kTransferFail, .message = "a target could not be written"};
    for (const WriteMoves::Failure& failure : failures)
        if (failure.in_doubt) outcome.in_doubt.push_back(failure.in_doubt);
    return outcome;
}

CopyWorker::Outcome CopyWorker::unknown_target() { return {.code = StoreCode::kSegmentNotFound, .message = "a target is not known"}; }

CopyWorker::Outcome CopyWorker::not_the_value() {
    return {.code = StoreCode::kChecksumMismatch, .message = "the source does not hold the value"};
}

}  // namespace mooncake::store
