// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "store/master/jobs/jobs.h"
#include "store/master/ops/task_ops.h"

namespace mooncake::store {

namespace {

constexpr size_t kBlocksPerRun = 1024;

/// One run of one drain: looks at a part of what its segments hold and orders moves, as many at a time as it may.
class DrainRun {
public:
    DrainRun(Transaction& transaction, const Drain& drain, Time now)
        : transaction_(transaction), job_(drain.id), now_(now), scanned_{.job = drain.id,
                                                                         .position = drain.position,
                                                                         .next_block = drain.next_block,
                                                                         .seen = drain.seen,
                                                                         .hopeless = drain.hopeless,
                                                                         .blocked = drain.blocked} {}

    void run() {
        for (size_t left = kBlocksPerRun; left != 0; --left) {
            if (scanned_.position == drain().segments.size()) {
                end_pass();
                return;
            }
            const SegmentNumber segment = drain().segments[scanned_.position];
            if (!exists(segment) || scanned_.next_block >= allocator(segment).limit()) {
                ++scanned_.position;
                scanned_.next_block = 1;
                continue;
            }
            if (drain().active >= drain().concurrency) break;
            look_at(segment, scanned_.next_block++);
        }
        transaction_.apply(scanned_);
    }

private:
    const MasterState& state() const { return transaction_.state(); }
    const Drain& drain() const {
        return *std::find_if(state().drains().begin(), state().drains().end(), [&](const Drain& one) { return one.id == job_; });
    }
    bool exists(SegmentNumber segment) const { return state().segments().exists(segment); }
    const RangeAllocator& allocator(SegmentNumber segment) const { return state().segments()[segment].allocator; }

    void look_at(SegmentNumber segment, RangeAllocator::Block block) {
        if (!allocator(segment).is_used(block)) return;
        const uint64_t owner = allocator(segment).owner(block);
        if (owner_kind(owner) == OwnerKind::kResting) return;
        ++scanned_.seen;
        if (owner_kind(owner) != OwnerKind::kObject) return;  // will be a value, or gone
        const ObjectId id = owner_number(owner);
        const Object& object = state().objects()[id];
        const auto attempts = drain().attempts.find(object.generation);
        if (attempts != drain().attempts.end() && attempts->second >= static_cast<uint32_t>(state().options().drain_attempts)) {
            ++scanned_.hopeless;
        } else if (object.copy != 0 || object.write != 0) {
            ++scanned_.blocked;
        } else if (held_elsewhere(object)) {
            transaction_.apply(ReplicaRemoved{.object = id, .segment = segment, .now = now_});
            ++scanned_.shed;
        } else {
            move(object, segment);
        }
    }
    bool held_elsewhere(const Object& object) const {
        for (size_t i = 0; i < object.replicas.size(); ++i)
            if (state().segments()[object.replicas[i].segment].status == SegmentStatus::kOk) return true;
        return false;
    }
    void move(const Object& object, SegmentNumber segment) {
        const TaskId task = state().next_task();
        transaction_.apply(TaskCreated{.task = task,
                                       .type = TaskType::kMove,
                                       .tenant = state().tenants()[object.tenant].name,
                                       .key = std::string(object.key()),
                                       .source = segment,
                                       .destination = drain().destination,
                                       .job = job_,
                                       .now = now_});
        start_task(transaction_, state().tasks().find(task), now_);
    }

    void end_pass() {
        const bool empty = scanned_.seen == 0, stuck = scanned_.seen == scanned_.hopeless && drain().active == 0;
        if (empty)
            for (const SegmentNumber segment : drain().segments)
                if (exists(segment) && state().segments()[segment].status == SegmentStatus::kDraining)
                    transaction_.apply(SegmentStatusSet{.segment = segment, .status = SegmentStatus::kDrained, .now = now_});
        const uint64_t left = scanned_.seen;
        scanned_.position = 0;
        scanned_.next_block = 1;
        scanned_.seen = scanned_.hopeless = scanned_.blocked = 0;
        transaction_.apply(scanned_);
        if (empty) transaction_.apply(DrainFinished{.job = job_, .status = DrainStatus::kSucceeded, .now = now_});
        else if (stuck)
            transaction_.apply(DrainFinished{
                .job = job_, .status = DrainStatus::kFailed, .message = format_text("{} values could not be moved", left), .now = now_});
    }

    Transaction& transaction_;
    const JobId job_;
    const Time now_;
    DrainScanned scanned_;
};

}  // namespace

void run_drains(Transaction& transaction, Time now) {
    for (const auto& drain : transaction.state().drains())
        if (drain.status == DrainStatus::kRunning) DrainRun(transaction, drain, now).run();
}

}  // namespace mooncake::store
