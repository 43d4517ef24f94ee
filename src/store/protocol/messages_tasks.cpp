// SPDX-License-Identifier: Apache-2.0
#include "store/protocol/messages_tasks.h"

#include "store/protocol/message_parts.h"
#include "store/protocol/messages_objects.h"

namespace mooncake::store {

using namespace parts;

std::vector<std::byte> encode_task_request(const TaskRequest& request) {
    Builder builder;
    const auto tenant = builder->CreateString(request.tenant);
    const auto key = builder->CreateString(request.key);
    const auto source = builder->CreateString(request.source);
    const auto targets = builder->CreateVectorOfStrings(request.targets);
    return builder.finish(wire::CreateTaskRequest(*builder, static_cast<uint8_t>(request.type), tenant, key, source, targets));
}

Result<ReceivedTask> decode_task_request(std::span<const std::byte> body) {
    MC_ASSIGN_OR_RETURN(auto message, VerifiedMessage<wire::TaskRequest>::parse(body, "task request"));
    if (message->type() > static_cast<uint8_t>(TaskType::kMove)) return fail(Code::kCorrupt, "a task of type {}", message->type());
    ReceivedTask received;
    TaskRequest& request = received.request;
    request.type = static_cast<TaskType>(message->type());
    request.key = view_of(message->key());
    MC_ASSIGN_OR_RETURN(request.tenant, bounded_view(message->tenant(), kNameBytesMax, "tenant name"));
    MC_ASSIGN_OR_RETURN(request.source, bounded_view(message->source(), kNameBytesMax, "segment name"));
    MC_ASSIGN_OR_RETURN(const size_t count, bounded_count(message->targets(), kTaskTargetsMax, "targets"));
    request.targets.reserve(count);
    for (size_t i = 0; i < count; ++i) {
        const auto* name = message->targets()->Get(static_cast<flatbuffers::uoffset_t>(i));
        MC_ASSIGN_OR_RETURN(request.targets.emplace_back(), bounded_text(name, kNameBytesMax, "segment name"));
    }
    received.copy = message.take_copy();
    return received;
}

std::vector<std::byte> encode_task_reply(const TaskReply& reply) {
    Builder builder;
    const wire::Id task = id_to_wire(reply.task);
    return builder.finish(wire::CreateTaskReply(*builder, static_cast<int32_t>(reply.code), &task));
}

Result<TaskReply> decode_task_reply(std::span<const std::byte> body) {
    MC_ASSIGN_OR_RETURN(const auto message, VerifiedMessage<wire::TaskReply>::parse(body, "task reply"));
    return TaskReply{.code = static_cast<StoreCode>(message->code()), .task = id_from_wire<TaskId>(message->task())};
}

std::vector<std::byte> encode_task_query(const TaskId& task) {
    Builder builder;
    const wire::Id id = id_to_wire(task);
    return builder.finish(wire::CreateTaskQuery(*builder, &id));
}

Result<TaskId> decode_task_query(std::span<const std::byte> body) {
    MC_ASSIGN_OR_RETURN(const auto message, VerifiedMessage<wire::TaskQuery>::parse(body, "task query"));
    return id_from_wire<TaskId>(message->task());
}

std::vector<std::byte> encode_task_info(const TaskInfo& info) {
    Builder builder;
    const auto text = builder->CreateString(info.message);
    const wire::Id id = id_to_wire(info.id);
    const wire::Id client = id_to_wire(info.client);
    return builder.finish(wire::CreateTaskInfo(*builder, &id, static_cast<uint8_t>(info.type), static_cast<uint8_t>(info.status),
                                               info.created_ms, info.updated_ms, &client, text));
}

Result<TaskInfo> decode_task_info(std::span<const std::byte> body) {
    MC_ASSIGN_OR_RETURN(const auto message, VerifiedMessage<wire::TaskInfo>::parse(body, "task info"));
    if (message->type() > static_cast<uint8_t>(TaskType::kMove) || message->status() > static_cast<uint8_t>(TaskStatus::kFailed))
        return fail(Code::kCorrupt, "a task of type {} in status {}", message->type(), message->status());
    return TaskInfo{.id = id_from_wire<TaskId>(message->id()),
                    .type = static_cast<TaskType>(message->type()),
                    .status = static_cast<TaskStatus>(message->status()),
                    .created_ms = message->created_ms(),
                    .updated_ms = message->updated_ms(),
                    .client = id_from_wire<ClientId>(message->client()),
                    .message = std::string(view_of(message->message()))};
}

std::vector<std::byte> encode_task_end(const TaskEnd& end) {
    Builder builder;
    const auto text = builder->CreateString(end.message);
    const wire::Id client = id_to_wire(end.client);
    const wire::Id task = id_to_wire(end.task);
    const auto in_doubt = end.in_doubt.empty() ? 0 : builder->CreateVector(end.in_doubt);
    return builder.finish(wire::CreateTaskEnd(*builder, &client, &task, static_cast<int32_t>(end.code), text, in_doubt));
}

Result<TaskEnd> decode_task_end(std::span<const std::byte> body) {
    MC_ASSIGN_OR_RETURN(const auto message, VerifiedMessage<wire::TaskEnd>::parse(body, "task end"));
    TaskEnd end{.client = id_from_wire<ClientId>(message->client()),
                .task = id_from_wire<TaskId>(message->task()),
                .code = static_cast<StoreCode>(message->code()),
                .message = {}};
    MC_ASSIGN_OR_RETURN(end.message, bounded_text(message->message(), kNameBytesMax, "message"));
    MC_ASSIGN_OR_RETURN(const size_t count, bounded_count(message->in_doubt(), kTaskTargetsMax, "targets"));
    if (count != 0) end.in_doubt.assign(message->in_doubt()->begin(), message->in_doubt()->end());
    return end;
}

}  // namespace mooncake::store
