// SPDX-License-Identifier: Apache-2.0
#include "store/protocol/messages_objects.h"

#include "store/protocol/message_parts.h"

namespace mooncake::store {

using namespace parts;

namespace {

std::vector<std::byte> encode_ends(const ClientId& client, uint64_t request_id, std::string_view tenant, std::span<const PutEndItem> items,
                                   std::span<const uint32_t> in_doubt) {
    Builder builder;
    size_t bytes = 0;
    for (const PutEndItem& item : items) bytes += item.key.size();
    TextWriter texts(*builder, bytes);
    for (const PutEndItem& item : items) texts.add(item.key);
    const auto entries = structs_to_wire<wire::PutEndItem>(*builder, items, [](const PutEndItem& item) {
        return wire::PutEndItem(item.generation, item.checksum, static_cast<uint32_t>(item.key.size()));
    });
    const auto name = builder->CreateString(tenant);
    const auto segments = numbers_to_wire(*builder, in_doubt);
    const wire::Id id = id_to_wire(client);
    return builder.finish(wire::CreatePutEndRequest(*builder, &id, request_id, name, entries, texts.offset(), segments));
}

Result<std::vector<PutEndItem>> ends_from_wire(const wire::PutEndRequest& message) {
    MC_ASSIGN_OR_RETURN(const size_t count, bounded_count(message.items(), kKeysMax, "keys"));
    std::vector<PutEndItem> items(count);
    TextReader texts(message.texts());
    for (size_t i = 0; i < count; ++i) {
        const auto item = struct_at(*message.items(), i);
        items[i] = {.key = texts.next(item.key_bytes()), .generation = item.generation(), .checksum = item.checksum()};
    }
    MC_RETURN_IF_ERROR(texts.check());
    return items;
}

}  // namespace

// ---- exist, get

std::vector<std::byte> encode_keys_request(const KeysRequest& request) {
    Builder builder;
    const auto keys = keys_to_wire(*builder, request.keys);
    const auto tenant = builder->CreateString(request.tenant);
    const auto unreachable = numbers_to_wire(*builder, request.unreachable);
    return builder.finish(wire::CreateKeysRequest(*builder, tenant, keys.key_bytes, keys.texts, unreachable));
}

Result<ReceivedKeys> decode_keys_request(std::span<const std::byte> body) {
    MC_ASSIGN_OR_RETURN(auto message, VerifiedMessage<wire::KeysRequest>::parse(body, "keys request"));
    ReceivedKeys received;
    MC_ASSIGN_OR_RETURN(received.keys, keys_from_wire(message->key_bytes(), message->texts()));
    MC_ASSIGN_OR_RETURN(received.request.tenant, bounded_view(message->tenant(), kNameBytesMax, "tenant name"));
    received.request.keys = received.keys;
    received.request.unreachable = numbers_of(message->unreachable());
    received.copy = message.take_copy();
    return received;
}

std::vector<std::byte> encode_exist_reply(const ExistReply& reply) {
    Builder builder;
    const auto results = builder->CreateVector(reply.results);
    return builder.finish(wire::CreateExistReply(*builder, results, duration_to_wire(reply.soft_lease)));
}

Result<ExistReply> decode_exist_reply(std::span<const std::byte> body) {
    MC_ASSIGN_OR_RETURN(const auto message, VerifiedMessage<wire::ExistReply>::parse(body, "exist reply"));
    const auto results = numbers_of(message->results());
    return ExistReply{.results = {results.begin(), results.end()}, .soft_lease = duration_from_wire(message->promise_ns())};
}

std::vector<std::byte> encode_get_reply(const GetReply& reply) {
    Builder builder;
    const auto replicas = replicas_to_wire(*builder, reply.items, reply.replicas);
    const auto items = structs_to_wire<wire::GetItem>(*builder, reply.items, [](const GetItem& item) {
        return wire::GetItem(item.length, item.checksum, item.generation, static_cast<int32_t>(item.code),
                             static_cast<uint16_t>(item.replica_count), static_cast<uint8_t>(item.data_type));
    });
    return builder.finish(wire::CreateGetReply(*builder, items, replicas, duration_to_wire(reply.lease), reply.epoch));
}

Result<GetReply> decode_get_reply(std::span<const std::byte> body) {
    MC_ASSIGN_OR_RETURN(const auto message, VerifiedMessage<wire::GetReply>::parse(body, "get reply"));
    GetReply reply{.items = std::vector<GetItem>(count_of(message->items())),
                   .replicas = replicas_from_wire(message->replicas()),
                   .lease = duration_from_wire(message->lease_ns()),
                   .epoch = message->epoch()};
    size_t first = 0;
    for (size_t i = 0; i < reply.items.size(); ++i) {
        const auto item = struct_at(*message->items(), i);
        reply.items[i] = {.code = static_cast<StoreCode>(item.code()),
                          .first_replica = static_cast<uint32_t>(first),
                          .replica_count = item.replica_count(),
                          .length = item.length(),
                          .checksum = item.checksum(),
                          .generation = item.generation(),
                          .data_type = static_cast<ObjectDataType>(item.data_type())};
        first += item.replica_count();
    }
    if (first != reply.replicas.size()) return fail(Code::kCorrupt, "a get reply whose replicas do not fit its items");
    return reply;
}

// ---- put

std::vector<std::byte> encode_put_start_request(const PutStartRequest& request, bool replace) {
    Builder builder;
    size_t bytes = 0;
    for (const PutItem& item : request.items) bytes += item.key.size() + item.group.size();
    TextWriter texts(*builder, bytes);
    for (const PutItem& item : request.items) {
        texts.add(item.key);
        texts.add(item.group);
    }
    const auto items = structs_to_wire<wire::PutItem>(*builder, request.items, [](const PutItem& item) {
        return wire::PutItem(item.length, static_cast<uint32_t>(item.key.size()), static_cast<uint32_t>(item.group.size()));
    });
    const auto tenant = builder->CreateString(request.tenant);
    const auto config = config_to_wire(*builder, request.config);
    const auto unreachable = numbers_to_wire(*builder, request.unreachable);
    const wire::Id client = id_to_wire(request.client);
    return builder.finish(
        wire::CreatePutStartRequest(*builder, &client, request.request_id, tenant, config, items, texts.offset(), replace, unreachable));
}

Result<ReceivedPutStart> decode_put_start_request(std::span<const std::byte> body) {
    MC_ASSIGN_OR_RETURN(auto message, VerifiedMessage<wire::PutStartRequest>::parse(body, "put start request"));
    MC_ASSIGN_OR_RETURN(const size_t count, bounded_count(message->items(), kKeysMax, "keys"));
    ReceivedPutStart received{.request = {.client = id_from_wire<ClientId>(message->client()), .request_id = message->request_id()},
                              .replace = message->replace(),
                              .items = std::vector<PutItem>(count),
                              .copy = nullptr};
    TextReader texts(message->texts());
    for (size_t i = 0; i < count; ++i) {
        const auto item = struct_at(*message->items(), i);
        received.items[i].key = texts.next(item.key_bytes());
        received.items[i].length = item.length();
        received.items[i].group = texts.next(item.group_bytes());
    }
    MC_RETURN_IF_ERROR(texts.check());
    MC_ASSIGN_OR_RETURN(received.request.tenant, bounded_view(message->tenant(), kNameBytesMax, "tenant name"));
    MC_ASSIGN_OR_RETURN(received.request.config, config_from_wire(message->config()));
    received.request.items = received.items;
    received.request.unreachable = numbers_of(message->unreachable());
    received.copy = message.take_copy();
    return received;
}

std::vector<std::byte> encode_put_start_reply(const PutStartReply& reply) {
    Builder builder;
    const auto replicas = replicas_to_wire(*builder, reply.items, reply.replicas);
    const auto items = structs_to_wire<wire::PutStartItem>(*builder, reply.items, [](const PutStartItem& item) {
        return wire::PutStartItem(item.generation, static_cast<int32_t>(item.code), item.replica_count);
    });
    return builder.finish(wire::CreatePutStartReply(*builder, items, replicas, duration_to_wire(reply.retry_after), reply.epoch,
                                                    duration_to_wire(reply.release), duration_to_wire(reply.disk_wait)));
}

Result<PutStartReply> decode_put_start_reply(std::span<const std::byte> body) {
    MC_ASSIGN_OR_RETURN(const auto message, VerifiedMessage<wire::PutStartReply>::parse(body, "put start reply"));
    PutStartReply reply{.items = std::vector<PutStartItem>(count_of(message->items())),
                        .replicas = replicas_from_wire(message->replicas()),
                        .retry_after = duration_from_wire(message->retry_after_ns()),
                        .disk_wait = duration_from_wire(message->disk_wait_ns()),
                        .epoch = message->epoch(),
                        .release = duration_from_wire(message->release_ns())};
    size_t first = 0;
    for (size_t i = 0; i < reply.items.size(); ++i) {
        const auto item = struct_at(*message->items(), i);
        reply.items[i] = {.code = static_cast<StoreCode>(item.code()),
                          .first_replica = static_cast<uint32_t>(first),
                          .replica_count = item.replica_count(),
                          .generation = item.generation()};
        first += item.replica_count();
    }
    if (first != reply.replicas.size()) return fail(Code::kCorrupt, "a put start reply whose replicas do not fit its items");
    return reply;
}

std::vector<std::byte> encode_put_end_request(const PutEndRequest& request) {
    return encode_ends(request.client, 0, request.tenant, request.items, {});
}

Result<ReceivedPutEnd> decode_put_end_request(std::span<const std::byte> body) {
    MC_ASSIGN_OR_RETURN(auto message, VerifiedMessage<wire::PutEndRequest>::parse(body, "put end request"));
    ReceivedPutEnd received{.request = {.client = id_from_wire<ClientId>(message->client())}};
    MC_ASSIGN_OR_RETURN(received.items, ends_from_wire(*message));
    MC_ASSIGN_OR_RETURN(received.request.tenant, bounded_view(message->tenant(), kNameBytesMax, "tenant name"));
    received.request.items = received.items;
    received.copy = message.take_copy();
    return received;
}

std::vector<std::byte> encode_put_revoke_request(const PutRevokeRequest& request) {
    return encode_ends(request.client, request.request_id, request.tenant, request.items, request.in_doubt);
}

Result<ReceivedPutRevoke> decode_put_revoke_request(std::span<const std::byte> body) {
    MC_ASSIGN_OR_RETURN(auto message, VerifiedMessage<wire::PutEndRequest>::parse(body, "put revoke request"));
    ReceivedPutRevoke received{.request = {.client = id_from_wire<ClientId>(message->client()), .request_id = message->request_id()}};
    MC_ASSIGN_OR_RETURN(received.items, ends_from_wire(*message));
    MC_ASSIGN_OR_RETURN(received.request.tenant, bounded_view(message->tenant(), kNameBytesMax, "tenant name"));
    received.request.items = received.items;
    received.request.in_doubt = numbers_of(message->in_doubt());
    received.copy = message.take_copy();
    return received;
}

std::vector<std::byte> encode_codes_reply(const CodesReply& reply) {
    static_assert(sizeof(StoreCode) == sizeof(int32_t));
    Builder builder;
    const auto codes = builder->CreateVector(reinterpret_cast<const int32_t*>(reply.codes.data()), reply.codes.size());
    return builder.finish(wire::CreateCodesReply(*builder, codes));
}

Result<CodesReply> decode_codes_reply(std::span<const std::byte> body) {
    MC_ASSIGN_OR_RETURN(const auto message, VerifiedMessage<wire::CodesReply>::parse(body, "codes reply"));
    CodesReply reply;
    reply.codes.reserve(count_of(message->codes()));
    for (const int32_t code : numbers_of(message->codes())) reply.codes.push_back(static_cast<StoreCode>(code));
    return reply;
}

// ---- remove

std::vector<std::byte> encode_remove_request(const RemoveRequest& request) {
    Builder builder;
    const auto keys = keys_to_wire(*builder, request.keys);
    const auto tenant = builder->CreateString(request.tenant);
    return builder.finish(wire::CreateRemoveRequest(*builder, tenant, keys.key_bytes, keys.texts, request.force));
}

Result<ReceivedRemove> decode_remove_request(std::span<const std::byte> body) {
    MC_ASSIGN_OR_RETURN(auto message, VerifiedMessage<wire::RemoveRequest>::parse(body, "remove request"));
    ReceivedRemove received;
    MC_ASSIGN_OR_RETURN(received.keys, keys_from_wire(message->key_bytes(), message->texts()));
    MC_ASSIGN_OR_RETURN(received.request.tenant, bounded_view(message->tenant(), kNameBytesMax, "tenant name"));
    received.request.keys = received.keys;
    received.request.force = message->force();
    received.copy = message.take_copy();
    return received;
}

std::vector<std::byte> encode_remove_matching_request(std::string_view tenant, std::string_view pattern, bool force) {
    Builder builder;
    const auto name = builder->CreateString(tenant);
    const auto text = builder->CreateString(pattern);
    return builder.finish(wire::CreateRemoveMatchingRequest(*builder, name, text, force));
}

Result<ReceivedRemoveMatching> decode_remove_matching_request(std::span<const std::byte> body) {
    MC_ASSIGN_OR_RETURN(auto message, VerifiedMessage<wire::RemoveMatchingRequest>::parse(body, "remove matching request"));
    ReceivedRemoveMatching received;
    MC_ASSIGN_OR_RETURN(received.tenant, bounded_view(message->tenant(), kNameBytesMax, "tenant name"));
    MC_ASSIGN_OR_RETURN(received.pattern, bounded_view(message->pattern(), kPatternBytesMax, "pattern"));
    received.force = message->force();
    received.copy = message.take_copy();
    return received;
}

std::vector<std::byte> encode_remove_matching_reply(int64_t count) {
    Builder builder;
    return builder.finish(wire::CreateRemoveMatchingReply(*builder, count));
}

Result<int64_t> decode_remove_matching_reply(std::span<const std::byte> body) {
    MC_ASSIGN_OR_RETURN(const auto message, VerifiedMessage<wire::RemoveMatchingReply>::parse(body, "remove matching reply"));
    return message->count();
}

std::vector<std::byte> encode_replica_clear_request(const ReplicaClearRequest& request) {
    Builder builder;
    const auto keys = keys_to_wire(*builder, request.keys);
    const auto tenant = builder->CreateString(request.tenant);
    const auto segment = builder->CreateString(request.segment_name);
    const wire::Id client = id_to_wire(request.client);
    return builder.finish(wire::CreateReplicaClearRequest(*builder, &client, tenant, keys.key_bytes, keys.texts, segment));
}

Result<ReceivedReplicaClear> decode_replica_clear_request(std::span<const std::byte> body) {
    MC_ASSIGN_OR_RETURN(auto message, VerifiedMessage<wire::ReplicaClearRequest>::parse(body, "replica clear request"));
    ReceivedReplicaClear received;
    MC_ASSIGN_OR_RETURN(received.keys, keys_from_wire(message->key_bytes(), message->texts()));
    received.request.client = id_from_wire<ClientId>(message->client());
    MC_ASSIGN_OR_RETURN(received.request.tenant, bounded_view(message->tenant(), kNameBytesMax, "tenant name"));
    MC_ASSIGN_OR_RETURN(received.request.segment_name, bounded_view(message->segment_name(), kNameBytesMax, "segment name"));
    received.request.keys = received.keys;
    received.copy = message.take_copy();
    return received;
}

}  // namespace mooncake::store
