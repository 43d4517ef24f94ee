// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "store/master/ops/evictor.h"
#include "store/master/ops/task_ops.h"

namespace mooncake::store {

namespace {

/// Finds room for one task's copies, evicting cold values on the target where it must.
class CopyPlanner {
public:
    CopyPlanner(Transaction& transaction, const CopyWish& wish, Time now)
        : transaction_(transaction), wish_(wish), now_(now), evictor_(transaction, now, wish.object, wish.for_drain) {}

    StoreCode run(CopyStarted& change) {
        change.source = source();
        if (change.source == 0) return StoreCode::kReplicaNotFound;
        for (size_t i = 0; i < object().replicas.size(); ++i)
            if (const SegmentNumber segment = object().replicas[i].segment; !segments().is_disk(segment))
                names_in_use_.push_back(segments()[segment].name_number);
        const std::vector<SegmentNumber> chosen = wish_.destination.empty() ? anywhere() : listed();
        if (chosen.empty()) return why_none();
        if (over_quota(chosen.size())) return StoreCode::kTenantQuotaExceeded;
        for (const SegmentNumber segment : chosen)
            if (const auto offset = evictor_.find_room(segment, bytes())) change.targets.push_back({.segment = segment, .offset = *offset});
        return change.targets.empty() ? StoreCode::kNoAvailableHandle : StoreCode::kOk;
    }

private:
    const MasterState& state() const { return transaction_.state(); }
    const SegmentTable& segments() const { return state().segments(); }
    const Object& object() const { return state().objects()[wish_.object]; }
    uint64_t bytes() const { return state().rounded(object().length); }

    SegmentNumber source() const {
        const ReplicaList& replicas = object().replicas;
        if (wish_.source != 0) return replicas.find(wish_.source) < replicas.size() ? wish_.source : 0;
        SegmentNumber any = 0;  // from memory to memory alone
        for (size_t i = 0; i < replicas.size(); ++i) {
            if (segments().is_disk(replicas[i].segment)) continue;
            if (segments().answers(replicas[i].segment, now_)) return replicas[i].segment;
            if (any == 0) any = replicas[i].segment;
        }
        return any;
    }
    bool name_in_use(SegmentNumber segment) const {
        return std::find(names_in_use_.begin(), names_in_use_.end(), segments()[segment].name_number) != names_in_use_.end();
    }
    bool fits(SegmentNumber segment) {
        if (segments().is_disk(segment) || !segments().is_trusted(segment, now_)) return false;
        if (segments()[segment].allocator.find(bytes())) return true;
        return evictor_.make_room_on(segment, object().length, Sacrifice::kSoftPinned);
    }

    /// One segment of each name in the list that has none of it yet; of a move the first alone.
    std::vector<SegmentNumber> listed() {
        std::vector<SegmentNumber> chosen;
        for (const SegmentNumber segment : wish_.destination) {
            if (!segments().exists(segment)) {
                gone_ = true;
                continue;
            }
            if (name_in_use(segment)) continue;
            full_ = true;
            if (!fits(segment)) continue;
            chosen.push_back(segment);
            names_in_use_.push_back(segments()[segment].name_number);
            if (wish_.type == TaskType::kMove) break;
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
    StoreCode why_none() const {
        if (full_) return StoreCode::kNoAvailableHandle;
        return gone_ ? StoreCode::kSegmentNotFound : StoreCode::kReplicaAlreadyExists;
    }
    /// Both are there for a while, also in a move.
    bool over_quota(size_t copies) const {
        if (!state().options().tenants || wish_.for_drain) return false;
        const Tenant& tenant = state().tenants()[object().tenant];
        return tenant.charged_bytes + bytes() * copies > tenant.effective_quota;
    }

    Transaction& transaction_;
    const CopyWish& wish_;
    const Time now_;
    Evictor evictor_;
    std::vector<uint32_t> names_in_use_;
    bool full_ = false;  // there is a target, but no room
    bool gone_ = false;  // a target is not there any more
};

}  // namespace

tl::expected<CopyStarted, StoreCode> plan_copy(Transaction& transaction, const CopyWish& wish, Time now) {
    const Object& object = transaction.state().objects()[wish.object];
    if (object.write != 0 || !object.has_value()) return tl::unexpected(StoreCode::kReplicaIsNotReady);
    if (object.copy != 0) return tl::unexpected(StoreCode::kObjectHasReplicationTask);
    CopyStarted change{.object = wish.object, .now = now};
    if (const StoreCode code = CopyPlanner(transaction, wish, now).run(change); code != StoreCode::kOk) return tl::unexpected(code);
    return change;
}

StoreCode begin_copy(Transaction& transaction, TaskNumber number, Time now) {
    const MasterState& state = transaction.state();
    const Task& task = state.tasks()[number];
    const TenantNumber tenant = state.tenant(task.tenant);
    const ObjectId id = tenant == 0 ? 0 : state.objects().find(tenant, task.key);
    if (id == 0) return StoreCode::kObjectNotFound;
    auto change = plan_copy(transaction, {.object = id, .type = task.type, .source = task.source, .destination = task.destination}, now);
    if (!change) return change.error();
    change->task = task.id;
    transaction.apply(*std::move(change));
    return StoreCode::kOk;
}

}  // namespace mooncake::store
