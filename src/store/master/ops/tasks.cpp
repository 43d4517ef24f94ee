// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "store/master/ops/task_ops.h"

namespace mooncake::store {

namespace {

/// The memory of these names; empty where one of them is unknown.
std::vector<SegmentNumber> find_segments(const SegmentTable& segments, const std::vector<std::string>& names) {
    std::vector<SegmentNumber> found;
    for (const std::string& name : names) {
        const std::vector<SegmentNumber> numbers = segments.find_memory(name);
        if (numbers.empty()) return {};
        found.insert(found.end(), numbers.begin(), numbers.end());
    }
    return found;
}

/// A move gives its source up for what it wrote, a copy does not.
bool worth_its_source(const MasterState& state, const Copy& copy, Time now) {
    if (!copy.move) return true;
    for (size_t i = 0; i < copy.targets.size(); ++i)
        if (state.segments().is_trusted(copy.targets[i].segment, now)) return true;
    return false;
}

}  // namespace

bool feared(const MasterState& state, const ClientId& client, const TaskId& task) {
    const ClientNumber copier = state.clients().find(client);
    if (copier == 0 || task.high != state.options().first_generation) return false;
    const std::vector<QuarantineId> quarantined = state.quarantine().find_copy(task.low);
    return std::any_of(quarantined.begin(), quarantined.end(), [&](QuarantineId id) { return state.quarantine()[id].writer == copier; });
}

TaskReply create_task(Transaction& transaction, const TaskRequest& request, Time now) {
    const MasterState& state = transaction.state();
    const SegmentTable& segments = state.segments();
    const bool move = request.type == TaskType::kMove;
    const auto refuse = [](StoreCode code) { return TaskReply{.code = code}; };
    if (request.targets.empty() || (move && request.targets.size() != 1) || too_long(request.key)) return refuse(StoreCode::kInvalidParams);
    TaskCreated change{.task = state.next_task(),
                       .type = request.type,
                       .tenant = std::string(request.tenant),
                       .key = std::string(request.key),
                       .destination = find_segments(segments, request.targets),
                       .now = now};
    const std::vector<SegmentNumber> sources = segments.find_memory(request.source);
    const bool same = move && request.source == request.targets[0];
    if (change.destination.empty() || same || (move && sources.empty())) return refuse(StoreCode::kInvalidParams);
    const TenantNumber tenant = state.tenant(request.tenant);
    const ObjectId id = tenant == 0 || request.key.empty() ? 0 : state.objects().find(tenant, request.key);
    if (id == 0) return refuse(StoreCode::kObjectNotFound);
    const ReplicaList& replicas = state.objects()[id].replicas;
    if (replicas.empty()) return refuse(StoreCode::kReplicaIsNotReady);
    const auto holds = [&](SegmentNumber segment) { return replicas.find(segment) < replicas.size(); };
    if (move) {
        const auto source = std::find_if(sources.begin(), sources.end(), holds);
        if (source == sources.end()) return refuse(StoreCode::kInvalidParams);
        change.source = *source;
    }
    const bool everywhere = std::all_of(request.targets.begin(), request.targets.end(), [&](const std::string& name) {
        const std::vector<SegmentNumber> numbers = segments.find_memory(name);
        return std::any_of(numbers.begin(), numbers.end(), holds);
    });
    if (everywhere && move) return refuse(StoreCode::kReplicaAlreadyExists);
    if (state.tasks().pending().size() >= state.options().pending_tasks_max) return refuse(StoreCode::kTaskPendingLimitExceeded);
    const TaskId task = change.task;
    transaction.apply(std::move(change));
    if (everywhere) transaction.apply(TaskFinished{.task = task, .code = StoreCode::kOk, .message = "already there", .now = now});
    return {.task = task};
}

StoreCode end_task(Transaction& transaction, const TaskEnd& end, Time now) {
    const MasterState& state = transaction.state();
    if (feared(state, end.client, end.task))
        transaction.apply(CopierStopped{.task = end.task, .client = end.client, .now = now, .in_doubt = end.in_doubt});
    const TaskNumber number = state.tasks().find(end.task);
    if (number == 0) return StoreCode::kTaskNotFound;
    const Task& task = state.tasks()[number];
    if (task.client != end.client) return StoreCode::kIllegalClient;
    if (task.copy == 0) return StoreCode::kOk;
    CopyEnded change{
        .copy = task.copy, .code = end.code, .message = end.message, .quarantine_until = now, .now = now, .in_doubt = end.in_doubt};
    if (end.code == StoreCode::kOk && !worth_its_source(state, state.copy(task.copy), now)) {
        change.code = StoreCode::kTransferFail;
        change.message = "the target does not answer any more";
    }
    transaction.apply(std::move(change));
    return StoreCode::kOk;
}

std::optional<TaskView> query_task(const MasterState& state, const TaskId& id) {
    const TaskNumber number = state.tasks().find(id);
    if (number == 0) return std::nullopt;
    const Task& task = state.tasks()[number];
    return TaskView{.info = {.id = task.id, .type = task.type, .status = task.status, .client = task.client, .message = task.message},
                    .created = task.created,
                    .updated = task.updated};
}

}  // namespace mooncake::store
