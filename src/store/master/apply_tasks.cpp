// SPDX-License-Identifier: Apache-2.0
// How changes to tenants' quotas, tasks, copies and drains alter the state.
#include <algorithm>

#include "store/master/state.h"

namespace mooncake::store {

namespace {

bool contains(std::span<const SegmentNumber> segments, SegmentNumber one) {
    return std::find(segments.begin(), segments.end(), one) != segments.end();
}

}  // namespace

void MasterState::apply(const QuotaSet& change) {
    const TenantNumber number = tenants_.find_or_insert(change.tenant);
    tenants_.set_quota(number, change.bytes, segments_.capacity());
    tenants_.drop_if_unused(number);
}

// tasks -------------------------------------------------------------------------------------------------------------------

void MasterState::apply(const TaskCreated& change) {
    last_task_ = std::max(last_task_, change.task.low);
    tasks_.insert({.id = change.task,
                   .type = change.type,
                   .tenant = change.tenant,
                   .key = change.key,
                   .source = change.source,
                   .destination = change.destination,
                   .job = change.job,
                   .created = change.now,
                   .updated = change.now});
    if (change.job) ++drain_of(change.job).active;
}

void MasterState::apply(const TaskDelayed& change) {
    Task& task = tasks_[tasks_.find(change.task)];
    task.not_before = change.until;
    ++task.attempts;
}

void MasterState::apply(const TaskFinished& change) { finish_task(tasks_.find(change.task), change.code, change.message, 0, change.now); }

void MasterState::finish_task(TaskNumber number, StoreCode code, std::string message, uint64_t bytes, Time now) {
    Task& task = tasks_[number];
    task.copy = 0;
    task.updated = now;
    task.message = code == StoreCode::kOk || !message.empty() ? std::move(message) : std::string(store_code_name(code));
    if (task.job) {
        Drain& drain = drain_of(task.job);
        --drain.active;
        drain.updated = now;
        if (code == StoreCode::kOk) {
            drain.migrated_bytes += bytes;
        } else if (drain.status == DrainStatus::kRunning) {
            count_try(drain, task.generation, code);
        }
    }
    tasks_.set_status(number, code == StoreCode::kOk ? TaskStatus::kSuccess : TaskStatus::kFailed);
    for (const IndexList* kept : {&tasks_.finished(), &tasks_.finished_of_drains()})
        if (kept->size() > options_.finished_tasks_max) tasks_.erase(kept->first());
}

// copies ------------------------------------------------------------------------------------------------------------------

void MasterState::apply(const CopyStarted& change) {
    const TaskNumber number = tasks_.find(change.task);
    Task& task = tasks_[number];
    Object& object = objects_[change.object];
    const CopyId id = copies_.take();
    Copy& copy = copies_[id];
    copy = {.task = change.task,
            .object = change.object,
            .source = change.source,
            .client = segments_[change.source].client,
            .move = task.type == TaskType::kMove};
    ++(copy.move ? totals_.moves : totals_.copies).started;
    copy.targets = take_ranges(change.targets, object.length, owner_word(OwnerKind::kCopy, id));
    charge(object.tenant, object.length, change.targets.size());
    object.copy = id;
    update_order(change.object);
    task.copy = id;
    task.client = clients_[copy.client].id;
    task.generation = object.generation;
    task.updated = change.now;
    tasks_.set_status(number, TaskStatus::kProcessing);
    if (observer_ == nullptr) return;
    for (size_t i = 0; i < copy.targets.size(); ++i) observer_->range_planned_for_copy(*this, copy.targets[i].segment, id);
    observer_->copy_ordered(*this, id);
}

void MasterState::apply(const CopyEnded& change) {
    if (change.code != StoreCode::kOk) {
        cancel_copy(change.copy, change.code, change.message, change.quarantine_until, change.now, change.in_doubt);
        return;
    }
    const Copy copy = std::move(copies_[change.copy]);
    copies_.give_back(change.copy);
    Object& object = objects_[copy.object];
    if (!copy.of_tiers()) {
        ++(copy.move ? totals_.moves : totals_.copies).ended;
        note_tellers(copy.object);
    }
    give_ranges(copy.targets, owner_word(OwnerKind::kObject, copy.object));
    for (size_t i = 0; i < copy.targets.size(); ++i) {
        object.replicas.add(copy.targets[i]);
        if (observer_ != nullptr) observer_->range_filled(*this, copy.targets[i].segment, object.generation, object.checksum);
    }
    object.copy = 0;
    if (copy.move) drop_replica(object, copy.source, change.now);
    update_order(copy.object);
    if (copy.of_tiers()) return end_tier_copy(copy, object.length, StoreCode::kOk, change.now);
    const TaskNumber task = tasks_.find(copy.task);
    if (tasks_[task].job) moved(tasks_[task].job, object);
    finish_task(task, StoreCode::kOk, change.message, rounded(object.length), change.now);
}

/// It is about to lie also where nobody has told of it.
void MasterState::note_tellers(ObjectId id) {
    const Object& object = objects_[id];
    if (generations_.is_own(object.generation) || tellers_.knows(object.generation)) return;
    std::vector<ClientId> tellers;
    for (size_t i = 0; i < object.replicas.size(); ++i) tellers.push_back(clients_[segments_[object.replicas[i].segment].client].id);
    tellers_.copied(object.generation, id, std::move(tellers));
}

void MasterState::apply(const CopierStopped& change) {
    const ClientNumber copier = clients_.find(change.client);
    MC_CHECK(copier != 0);
    for (const QuarantineId id : quarantine_.find_copy(change.task.low))
        if (quarantine_[id].writer == copier && !contains(change.in_doubt, quarantine_[id].segment)) end_quarantine(id);
}

void MasterState::cancel_copy(CopyId id, StoreCode code, std::string message, Time quarantine_until, Time now,
                              std::span<const SegmentNumber> in_doubt) {
    const Copy copy = std::move(copies_[id]);
    copies_.give_back(id);
    if (!copy.of_tiers()) ++(copy.move ? totals_.moves : totals_.copies).revoked;
    Object& object = objects_[copy.object];
    refund(object.tenant, object.length, memory_replicas(copy.targets));
    for (size_t i = 0; i < copy.targets.size(); ++i) {
        const Time until = contains(in_doubt, copy.targets[i].segment) ? now + options_.put_release_timeout : quarantine_until;
        drop_range(copy.targets[i], object.length, object.generation, until, now, {.writer = copy.client, .copy = copy.task.low});
    }
    object.copy = 0;
    if (object.has_value()) update_order(copy.object);
    if (copy.of_tiers()) return end_tier_copy(copy, object.length, code, now);
    finish_task(tasks_.find(copy.task), code, std::move(message), 0, now);
}

void MasterState::drop_replica(Object& object, SegmentNumber segment, Time now) {
    const size_t position = object.replicas.find(segment);
    MC_CHECK(position < object.replicas.size() && object.replicas.size() > 1);
    if (object.copy != 0 && copies_[object.copy].source == segment) cancel_tier_copy(object, now);
    refund(object.tenant, object.length, segments_.is_disk(segment) ? 0 : 1);
    drop_range(object.replicas[position], object.length, object.generation, object.read_until(now), now);
    object.replicas.erase(position);
}

// drains ------------------------------------------------------------------------------------------------------------------

Drain& MasterState::drain_of(const JobId& id) {
    const auto found = std::find_if(drains_.begin(), drains_.end(), [&](const Drain& drain) { return drain.id == id; });
    MC_CHECK(found != drains_.end());
    return *found;
}

DrainTries& MasterState::count_try(Drain& drain, uint64_t generation, StoreCode code) {
    DrainTries& tries = drain.tries[generation];
    if (++tries.count == static_cast<uint32_t>(options_.drain_attempts)) ++drain.failed;
    tries.openings = segments_.openings();
    drain.last_failure = code;
    return tries;
}

void MasterState::moved(const JobId& job, Object& object) {
    Drain& drain = drain_of(job);
    ++drain.succeeded;
    object.moved_by = mark_of(job);
    const auto tries = drain.tries.find(object.generation);
    if (tries == drain.tries.end()) return;
    if (tries->second.count >= static_cast<uint32_t>(options_.drain_attempts)) --drain.failed;  // it had been given up
    drain.tries.erase(tries);
}

bool MasterState::kept_by_drain(ObjectId unit) const {
    const auto kept = [this](ObjectId id) {
        const Object& object = objects_[id];
        if (object.moved_by != 0 && running_drains_[object.moved_by] != 0) return true;
        for (size_t i = 0; i < object.replicas.size(); ++i)
            if (segments_[object.replicas[i].segment].status == SegmentStatus::kDraining) return true;
        return false;
    };
    const std::span<const ObjectId> all = members(unit);
    return std::any_of(all.begin(), all.end(), kept);
}

void MasterState::apply(const DrainTried& change) {
    Drain& drain = drain_of(change.job);
    drain.updated = change.now;
    if (change.before_its_turn) {
        drain.tries[change.generation].openings = segments_.openings();
        drain.last_failure = change.code;
    } else {
        count_try(drain, change.generation, change.code).not_before = change.not_before;
    }
}

void MasterState::apply(const DrainStarted& change) {
    constexpr size_t kKept = 100;
    last_job_ = std::max(last_job_, change.job.low);
    ++running_drains_[mark_of(change.job)];
    drains_.push_back({.id = change.job,
                       .names = change.names,
                       .segments = change.segments,
                       .destination = change.destination,
                       .segment_names = change.segment_names,
                       .concurrency = change.concurrency,
                       .created = change.now,
                       .updated = change.now});
    const auto old = std::find_if(drains_.begin(), drains_.end(),
                                  [](const Drain& drain) { return drain.status != DrainStatus::kRunning && drain.active == 0; });
    if (drains_.size() > kKept && old != drains_.end()) drains_.erase(old);
}

void MasterState::apply(const DrainScanned& change) {
    Drain& drain = drain_of(change.job);
    drain.position = change.position;
    drain.next_block = change.next_block;
    drain.seen = change.seen;
    drain.hopeless = change.hopeless;
    drain.waiting = change.waiting;
    drain.blocked = change.blocked;
}

void MasterState::apply(const DrainFinished& change) {
    Drain& drain = drain_of(change.job);
    drain.status = change.status;
    --running_drains_[mark_of(change.job)];
    drain.tries.clear();
    drain.message = change.message;
    drain.updated = change.now;
}

}  // namespace mooncake::store
