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
                                                                         .waiting = drain.waiting,
                                                                         .blocked = drain.blocked} {}

    /// Whether there is more to do at once.
    bool run() {
        bool more = true;  // there is to look at, now
        for (size_t left = kBlocksPerRun; left != 0; --left) {
            if (scanned_.position == drain().segments.size()) {
                end_pass();
                return false;
            }
            const SegmentNumber segment = drain().segments[scanned_.position];
            if (!exists(segment) || scanned_.next_block >= allocator(segment).limit()) {
                ++scanned_.position;
                scanned_.next_block = 1;
                continue;
            }
            if (drain().active >= drain().concurrency || !may_begin()) {
                more = false;
                break;
            }
            look_at(segment, scanned_.next_block++);
        }
        transaction_.apply(scanned_);
        return more;
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
        if (owner_kind(owner) == OwnerKind::kQuarantined) return;
        ++scanned_.seen;
        if (owner_kind(owner) != OwnerKind::kObject) return;  // will be a value, or gone
        const ObjectId id = owner_number(owner);
        const Object& object = state().objects()[id];
        const DrainTries tries = tries_of(object.generation);
        const bool given_up = tries.count >= static_cast<uint32_t>(state().options().drain_attempts);
        const bool chance = tries.count != 0 && tries.openings != state().segments().openings();  // there may be room since the last try
        if (given_up && !chance) {
            ++scanned_.hopeless;
        } else if (object.copy != 0 || object.write != 0 || (tries.not_before > now_ && !chance)) {
            ++scanned_.waiting;
        } else if (held_elsewhere(object, segment)) {
            transaction_.apply(ReplicaRemoved{.object = id, .segment = segment, .job = job_, .now = now_});
        } else {
            move(id, segment, /*before_its_turn=*/given_up || tries.not_before > now_);
        }
    }
    DrainTries tries_of(uint64_t generation) const {
        const auto found = drain().tries.find(generation);
        return found == drain().tries.end() ? DrainTries{} : found->second;
    }
    /// What is drained is not trusted itself: nothing new goes there. A disk of the same node goes, perhaps, when the drain is over.
    bool held_elsewhere(const Object& object, SegmentNumber drained) const {
        const SegmentTable& segments = state().segments();
        for (size_t i = 0; i < object.replicas.size(); ++i) {
            const SegmentNumber other = object.replicas[i].segment;
            const bool own_disk = segments.is_disk(other) && segments[other].client == segments[drained].client;
            if (!own_disk && segments.is_trusted(other, now_)) return true;
        }
        return false;
    }
    bool may_begin() const { return state().tasks().processing().size() < state().options().processing_tasks_max; }
    void move(ObjectId id, SegmentNumber segment, bool before_its_turn) {
        const Object& object = state().objects()[id];
        auto change = plan_copy(
            transaction_, {.object = id, .type = TaskType::kMove, .source = segment, .destination = drain().destination, .for_drain = true},
            now_);
        if (!change) {
            ++scanned_.waiting;
            transaction_.apply(DrainTried{.job = job_,
                                          .generation = object.generation,
                                          .code = change.error(),
                                          .not_before = now_ + patience(),
                                          .before_its_turn = before_its_turn,
                                          .now = now_});
            return;
        }
        const TaskId task = state().next_task();
        transaction_.apply(TaskCreated{.task = task,
                                       .type = TaskType::kMove,
                                       .tenant = state().tenants()[object.tenant].name,
                                       .key = std::string(object.key()),
                                       .source = segment,
                                       .destination = drain().destination,
                                       .job = job_,
                                       .now = now_});
        change->task = task;
        transaction_.apply(*std::move(change));
    }
    /// Between two tries of what could not begin. Mostly leases are in the way, of a node that does not answer its time to live: the last try comes
    /// when both are over.
    Duration patience() const {
        const MasterOptions& options = state().options();
        return std::max(options.lease_ttl, options.client_ttl) / std::max(options.drain_attempts - 1, 1);
    }

    void end_pass() {
        const uint64_t left = scanned_.seen;
        const std::string lost = lost_segments();
        const bool empty = left == 0, stuck = left == scanned_.hopeless, over = (empty || stuck) && drain().active == 0;
        const bool succeeded = empty && lost.empty();
        scanned_.position = 0;
        scanned_.next_block = 1;
        scanned_.blocked = scanned_.waiting;
        scanned_.seen = scanned_.hopeless = scanned_.waiting = 0;
        transaction_.apply(scanned_);
        if (!over) return;
        for (const SegmentNumber segment : drain().segments)
            if (exists(segment) && state().segments()[segment].status == SegmentStatus::kDraining)
                transaction_.apply(
                    SegmentStatusSet{.segment = segment, .status = succeeded ? SegmentStatus::kDrained : SegmentStatus::kOk, .now = now_});
        std::string message = lost.empty() ? std::string() : format_text("segment lost: {}", lost);
        if (const size_t left_on_disks = values_on_disks(); left_on_disks != 0)
            message += format_text("{}{} values are on the disks of these nodes and stay there", message.empty() ? "" : "; ",
                                   left_on_disks);
        if (!empty)
            message += format_text("{}{} values could not be moved: {}", message.empty() ? "" : "; ", left,
                                   store_code_name(drain().last_failure));
        transaction_.apply(DrainFinished{
            .job = job_, .status = succeeded ? DrainStatus::kSucceeded : DrainStatus::kFailed, .message = std::move(message), .now = now_});
    }
    /// Of the nodes whose memory is drained: a drain is of memory.
    size_t values_on_disks() const {
        size_t values = 0;
        ClientNumber last = 0;
        for (const SegmentNumber segment : drain().segments) {
            if (!exists(segment) || state().segments()[segment].client == last) continue;
            last = state().segments()[segment].client;
            for (const SegmentNumber disk : state().clients()[last].disks) values += allocator(disk).used_blocks();
        }
        return values;
    }
    /// The names of segments that went before they were empty, with all that was left in them.
    std::string lost_segments() const {
        std::string lost;
        for (size_t i = 0; i < drain().segments.size(); ++i)
            if (!exists(drain().segments[i])) lost += (lost.empty() ? "" : ", ") + drain().segment_names[i];
        return lost;
    }

    Transaction& transaction_;
    const JobId job_;
    const Time now_;
    DrainScanned scanned_;
};

}  // namespace

bool run_drains(Transaction& transaction, Time now) {
    bool more = false;
    for (const auto& drain : transaction.state().drains())
        if (drain.status == DrainStatus::kRunning) more |= DrainRun(transaction, drain, now).run();
    return more;
}

}  // namespace mooncake::store
