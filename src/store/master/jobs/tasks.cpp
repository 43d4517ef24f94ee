// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "store/master/jobs/jobs.h"
#include "store/master/ops/task_ops.h"

namespace mooncake::store {

namespace {

constexpr Duration kRetryStep = 50ms, kRetryMax = 1s;

bool worth_another_try(StoreCode code) {
    return code == StoreCode::kNoAvailableHandle || code == StoreCode::kObjectHasReplicationTask || code == StoreCode::kReplicaIsNotReady;
}

void expire_tasks(Transaction& transaction, Time now) {
    const MasterState& state = transaction.state();
    const MasterOptions& options = state.options();
    const TaskTable& tasks = state.tasks();
    for (TaskNumber number = tasks.processing().first(), next = 0; number != 0; number = next) {
        next = tasks[number].order.next;
        if (options.processing_task_timeout == Duration::zero() || now - tasks[number].updated < options.processing_task_timeout) break;
        transaction.apply(CopyEnded{.copy = tasks[number].copy,
                                    .code = StoreCode::kRpcTimeout,
                                    .message = "not carried out in time",
                                    .quarantine_until = now + options.put_release_timeout,  // it may still be at it
                                    .now = now});
    }
    while (tasks.pending().first() != 0) {
        const Task& oldest = tasks[tasks.pending().first()];
        if (options.pending_task_timeout == Duration::zero() || now - oldest.created < options.pending_task_timeout) break;
        transaction.apply(
            TaskFinished{.task = oldest.id, .code = StoreCode::kNoAvailableHandle, .message = "could not be started in time", .now = now});
    }
}

/// Begins a pending task, or delays it, or fails it.
void start_task(Transaction& transaction, TaskNumber number, Time now) {
    const Task& task = transaction.state().tasks()[number];
    const StoreCode code = begin_copy(transaction, number, now);
    if (code == StoreCode::kOk) return;
    if (worth_another_try(code))
        transaction.apply(TaskDelayed{.task = task.id, .until = now + std::min(kRetryStep * (task.attempts + 1), kRetryMax)});
    else transaction.apply(TaskFinished{.task = task.id, .code = code, .message = {}, .now = now});
}

}  // namespace

size_t dispatch_tasks(Transaction& transaction, Time now) {
    constexpr size_t kTriesMax = 256;  // per run
    const TaskTable& tasks = transaction.state().tasks();
    expire_tasks(transaction, now);
    size_t tried = 0;
    for (TaskNumber number = tasks.pending().first(), next = 0; number != 0 && tried < kTriesMax; number = next) {
        next = tasks[number].order.next;
        if (tasks[number].not_before > now) continue;
        if (tasks.processing().size() >= transaction.state().options().processing_tasks_max) break;
        start_task(transaction, number, now);
        ++tried;
    }
    return tried;
}

}  // namespace mooncake::store
