// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "store/master/ops/evictor.h"
#include "store/master/ops/task_ops.h"

namespace mooncake::store {

namespace {

/// Finds room for one task's copies, evicting cold values on the target where it must.
class CopyPlanner {
public:
    CopyPlanner(Transaction& transaction, const Task& task, ObjectId object, Time now)
        : transaction_(transaction), task_(task), id_(object), now_(now), evictor_(transaction, now, object) {}

    StoreCode run(CopyStarted& change) {
        change.source = source();
        if (change.source == 0) return StoreCode::kReplicaNotFound;
        for (size_t i = 0; i < object().replicas.size(); ++i) names_in_use_.push_back(segments()[object().replicas[i].segment].name_number);
        const std::vector<SegmentNumber> chosen = task_.destination.empty() ? anywhere() : listed();
        if (chosen.empty()) return full_ ? StoreCode::kNoAvailableHandle : StoreCode::kReplicaAlreadyExists;
        if (over_quota(chosen.size())) return StoreCode::kTenantQuotaExceeded;
        for (const SegmentNumber segment : chosen)
            change.targets.push_back({.segment = segment, .offset = segments()[segment].allocator.find(bytes()).value()});
        return StoreCode::kOk;
    }

private:
    const MasterState& state() const { return transaction_.state(); }
    const SegmentTable& segments() const { return state().segments(); }
    const Object& object() const { return state().objects()[id_]; }
    uint64_t bytes() const { return state().rounded(object().length); }

    SegmentNumber source() const {
        const ReplicaList& replicas = object().replicas;
        if (task_.source != 0) return replicas.find(task_.source) < replicas.size() ? task_.source : 0;
        for (size_t i = 0; i < replicas.size(); ++i)
            if (segments()[replicas[i].segment].suspect_until <= now_) return replicas[i].segment;
        return replicas.empty() ? 0 : replicas[0].segment;
    }
    bool name_in_use(SegmentNumber segment) const {
        return std::find(names_in_use_.begin(), names_in_use_.end(), segments()[segment].name_number) != names_in_use_.end();
    }
    bool fits(SegmentNumber segment) {
        if (segments()[segment].view_position == UINT32_MAX) return false;
        if (segments()[segment].allocator.find(bytes())) return true;
        return evictor_.make_room_on(segment, object().length, Sacrifice::kSoftPinned);
    }

    /// One segment of each name in the list that has none of it yet; of a move the first alone.
    std::vector<SegmentNumber> listed() {
        std::vector<SegmentNumber> chosen;
        for (const SegmentNumber segment : task_.destination) {
            if (!segments().exists(segment) || name_in_use(segment)) continue;
            full_ = true;
            if (!fits(segment)) continue;
            chosen.push_back(segment);
            names_in_use_.push_back(segments()[segment].name_number);
            if (task_.type == TaskType::kMove) break;
        }
        return chosen;
    }
    std::vector<SegmentNumber> anywhere() {
        full_ = true;
        Random random(object().generation);
        const PlacementWish wish{.strategy = PlacementStrategy::kFreeRatioFirst, .length = bytes(), .names_in_use = names_in_use_};
        const auto found = choose_segment(segments().view(), wish, random, [&](const SegmentView& view) {
            return segments()[view.segment].allocator.find(bytes()).has_value();
        });
        if (found) return {segments().view().segments[*found].segment};
        const auto made = evictor_.make_room(object().length, {.names_in_use = names_in_use_}, Sacrifice::kSoftPinned);
        return made ? std::vector<SegmentNumber>{*made} : std::vector<SegmentNumber>{};
    }
    /// Both are there for a while, also in a move.
    bool over_quota(size_t copies) const {
        if (!state().options().tenants) return false;
        const Tenant& tenant = state().tenants()[object().tenant];
        return tenant.charged_bytes + bytes() * copies > tenant.effective_quota;
    }

    Transaction& transaction_;
    const Task& task_;
    const ObjectId id_;
    const Time now_;
    Evictor evictor_;
    std::vector<uint32_t> names_in_use_;
    bool full_ = false;  // there is a target, but no room
};

}  // namespace

StoreCode begin_copy(Transaction& transaction, TaskNumber number, Time now) {
    const MasterState& state = transaction.state();
    const Task& task = state.tasks()[number];
    const TenantNumber tenant = state.tenant(task.tenant);
    const ObjectId id = tenant == 0 ? 0 : state.objects().find(tenant, task.key);
    if (id == 0) return StoreCode::kObjectNotFound;
    const Object& object = state.objects()[id];
    if (object.write != 0 || !object.has_value()) return StoreCode::kReplicaIsNotReady;
    if (object.copy != 0) return StoreCode::kObjectHasReplicationTask;
    CopyStarted change{.task = task.id, .object = id, .now = now};
    if (const StoreCode code = CopyPlanner(transaction, task, id, now).run(change); code != StoreCode::kOk) return code;
    transaction.apply(std::move(change));
    return StoreCode::kOk;
}

}  // namespace mooncake::store
