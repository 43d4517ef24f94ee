// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <utility>

#include "store/master/ops/task_ops.h"
#include "store/service/copy_end.h"
#include "store/service/master_calls.h"

namespace mooncake::store {

namespace {

uint64_t wall_ms(Time at, Time now) {
    const auto wall = std::chrono::system_clock::now() - std::chrono::duration_cast<std::chrono::system_clock::duration>(now - at);
    return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(wall.time_since_epoch()).count());
}

}  // namespace

void MasterCalls::attach_tasks(rpc::Server& server) {
    server.handle(rpc::Method::kStoreCreateTask, handler("create_task", decode_task_request, &MasterCalls::create_task));
    server.handle(rpc::Method::kStoreQueryTask, handler("query_task", decode_task_query, &MasterCalls::query_task));
    server.handle(rpc::Method::kStoreEndTask, handler("end_task", decode_task_end, &MasterCalls::end_task));
}

void MasterCalls::create_task(const ReceivedTask& received, Answer answer) {
    require_memory();
    const TaskReply reply = run([&](Transaction& transaction, Time now) { return store::create_task(transaction, received.request, now); });
    answer->reply(encode_task_reply(reply));
    const bool move = received.request.type == TaskType::kMove;
    parts_.metrics.call(move ? CountedCall::kCreateMoveTask : CountedCall::kCreateCopyTask, reply.code == StoreCode::kOk);
}

void MasterCalls::query_task(const TaskId& task, Answer answer) {
    auto found = parts_.master.look([&](const MasterState& state, Time now) {
        auto view = store::query_task(state, task);
        if (view) {
            view->info.created_ms = wall_ms(view->created, now);
            view->info.updated_ms = wall_ms(view->updated, now);
        }
        return view;
    });
    if (found) answer->reply(encode_task_info(found->info));
    else answer->fail(error(Code::kNotFound, "no task {}", task.to_string()));
    parts_.metrics.call(CountedCall::kQueryTask, found.has_value());
}

void MasterCalls::end_task(const TaskEnd& end, Answer answer) {
    EventHub::Caused caused;
    run_noting(caused, [&](Transaction& transaction, Time) {
        tell_of_copies(parts_.hub, transaction.state(), end, caused);
        return true;
    });
    if (parts_.hub.told(caused)) return finish_task(end, std::move(answer));
    auto then = [this, end, answer = std::make_shared<Answer>(std::move(answer))] {
        const auto finish = [this, end, answer] {
            if (const Gate::Pass pass = gate_.enter()) finish_task(end, std::move(*answer));
        };
        if (auto posted = parts_.worker.post(contained_task("end_task", finish)); !posted) (*answer)->fail(posted.error());
    };
    parts_.jobs.wake_by(parts_.hub.call_when_told(caused, std::move(then), Clock::now()));
}

void MasterCalls::finish_task(const TaskEnd& end, Answer answer) {
    const StoreCode code = run([&](Transaction& transaction, Time now) {
        note_lost(transaction, now);  // a target that was cut off meanwhile is not to be relied on
        return store::end_task(transaction, end, now);
    });
    answer->reply(encode_code_reply(code));
    parts_.metrics.call(CountedCall::kUpdateTask, code == StoreCode::kOk);
}

}  // namespace mooncake::store
