// SPDX-License-Identifier: Apache-2.0
#include "store/protocol/messages_tiers.h"

#include "store/protocol/message_parts.h"

namespace mooncake::store {

using namespace parts;

namespace {

/// Tenant and key of each, one after another.
template <typename Items>
flatbuffers::Offset<flatbuffers::Vector<uint8_t>> names_to_wire(FlatBufferBuilder& builder, const Items& items) {
    size_t bytes = 0;
    for (const auto& item : items) bytes += item.tenant.size() + item.key.size();
    TextWriter texts(builder, bytes);
    for (const auto& item : items) {
        texts.add(item.tenant);
        texts.add(item.key);
    }
    return texts.offset();
}

}  // namespace

std::vector<std::byte> encode_copies_end(const CopiesEnd& request) {
    Builder builder;
    const auto items = structs_to_wire<wire::CopyEnd>(*builder, request.items, [](const CopyEnd& item) {
        return wire::CopyEnd(id_to_wire(item.task), static_cast<int32_t>(item.code), item.in_doubt);
    });
    const wire::Id client = id_to_wire(request.client);
    return builder.finish(wire::CreateCopiesEnd(*builder, &client, items, request.window_bytes));
}

Result<ReceivedCopiesEnd> decode_copies_end(std::span<const std::byte> body) {
    MC_ASSIGN_OR_RETURN(const auto message, VerifiedMessage<wire::CopiesEnd>::parse(body, "ends of copies"));
    MC_ASSIGN_OR_RETURN(const size_t count, bounded_count(message->items(), kCopyEndsMax, "ends of copies"));
    ReceivedCopiesEnd received;
    received.items.reserve(count);
    for (size_t i = 0; i < count; ++i) {
        const auto item = struct_at(*message->items(), i);
        received.items.push_back(
            {.task = id_from_wire<TaskId>(&item.task()), .code = static_cast<StoreCode>(item.code()), .in_doubt = item.in_doubt()});
    }
    received.request = {
        .client = id_from_wire<ClientId>(message->client()), .items = received.items, .window_bytes = message->window_bytes()};
    return received;
}

std::vector<std::byte> encode_replicas_gone(const ReplicasGone& request) {
    Builder builder;
    const auto texts = names_to_wire(*builder, request.items);
    const auto items = structs_to_wire<wire::GoneReplica>(*builder, request.items, [](const GoneReplica& item) {
        return wire::GoneReplica(item.generation, static_cast<uint32_t>(item.tenant.size()), static_cast<uint32_t>(item.key.size()));
    });
    const wire::Id client = id_to_wire(request.client);
    const wire::Id segment = id_to_wire(request.segment);
    return builder.finish(wire::CreateReplicasGone(*builder, &client, &segment, items, texts));
}

Result<ReceivedReplicasGone> decode_replicas_gone(std::span<const std::byte> body) {
    MC_ASSIGN_OR_RETURN(auto message, VerifiedMessage<wire::ReplicasGone>::parse(body, "replicas that are gone"));
    MC_ASSIGN_OR_RETURN(const size_t count, bounded_count(message->items(), kGoneMax, "replicas that are gone"));
    ReceivedReplicasGone received;
    received.items.reserve(count);
    TextReader texts(message->texts());
    for (size_t i = 0; i < count; ++i) {
        const auto item = struct_at(*message->items(), i);
        GoneReplica& gone = received.items.emplace_back();
        gone.tenant = texts.next(item.tenant_bytes());
        gone.key = texts.next(item.key_bytes());
        gone.generation = item.generation();
    }
    MC_RETURN_IF_ERROR(texts.check());
    received.request = {.client = id_from_wire<ClientId>(message->client()),
                        .segment = id_from_wire<SegmentId>(message->segment()),
                        .items = received.items};
    received.copy = message.take_copy();
    return received;
}

std::vector<std::byte> encode_stage_request(const StageRequest& request) {
    Builder builder;
    const auto texts = names_to_wire(*builder, request.items);
    const auto items = structs_to_wire<wire::StageItem>(*builder, request.items, [](const StageItem& item) {
        return wire::StageItem(item.generation, item.offset, item.length, static_cast<uint32_t>(item.tenant.size()),
                               static_cast<uint32_t>(item.key.size()));
    });
    const wire::Id segment = id_to_wire(request.segment);
    return builder.finish(wire::CreateStageRequest(*builder, &segment, items, texts));
}

Result<ReceivedStage> decode_stage_request(std::span<const std::byte> body) {
    MC_ASSIGN_OR_RETURN(auto message, VerifiedMessage<wire::StageRequest>::parse(body, "stage request"));
    MC_ASSIGN_OR_RETURN(const size_t count, bounded_count(message->items(), kStageItemsMax, "parts"));
    ReceivedStage received;
    received.items.reserve(count);
    TextReader texts(message->texts());
    for (size_t i = 0; i < count; ++i) {
        const auto item = struct_at(*message->items(), i);
        StageItem& part = received.items.emplace_back();
        part.tenant = texts.next(item.tenant_bytes());
        part.key = texts.next(item.key_bytes());
        part.generation = item.generation();
        part.offset = item.offset();
        part.length = item.length();
    }
    MC_RETURN_IF_ERROR(texts.check());
    received.request = {.segment = id_from_wire<SegmentId>(message->segment()), .items = received.items};
    received.copy = message.take_copy();
    return received;
}

std::vector<std::byte> encode_stage_reply(const StageReply& reply) {
    Builder builder;
    std::vector<uint64_t> hashes;  // in the order of the parts
    for (const StagedPart& part : reply.parts) {
        const auto own = std::span(reply.hashes).subspan(part.first_hash, part.hash_count);
        hashes.insert(hashes.end(), own.begin(), own.end());
    }
    const auto list = builder->CreateVector(hashes);
    const auto parts = structs_to_wire<wire::StagedPart>(*builder, reply.parts, [](const StagedPart& part) {
        return wire::StagedPart(part.lease, part.address, part.length, static_cast<int32_t>(part.code), part.hash_count);
    });
    return builder.finish(wire::CreateStageReply(*builder, parts, list, duration_to_wire(reply.lease_time), reply.engine.value));
}

Result<StageReply> decode_stage_reply(std::span<const std::byte> body) {
    MC_ASSIGN_OR_RETURN(const auto message, VerifiedMessage<wire::StageReply>::parse(body, "stage reply"));
    StageReply reply;
    reply.parts.reserve(count_of(message->parts()));
    const auto hashes = numbers_of(message->hashes());
    uint64_t next = 0;
    for (size_t i = 0; i < count_of(message->parts()); ++i) {
        const auto part = struct_at(*message->parts(), i);
        if (part.hash_count() > hashes.size() - next) return fail(Code::kCorrupt, "the hashes do not fit their parts");
        reply.parts.push_back({.code = static_cast<StoreCode>(part.code()),
                               .lease = part.lease(),
                               .address = part.address(),
                               .length = part.length(),
                               .first_hash = static_cast<uint32_t>(next),
                               .hash_count = part.hash_count()});
        next += part.hash_count();
    }
    if (next != hashes.size()) return fail(Code::kCorrupt, "the hashes do not fit their parts");
    reply.hashes.assign(hashes.begin(), hashes.end());
    reply.lease_time = duration_from_wire(message->lease_ns());
    reply.engine = {message->incarnation()};
    return reply;
}

std::vector<std::byte> encode_release_request(const ReleaseRequest& request) {
    Builder builder;
    return builder.finish(wire::CreateReleaseRequest(*builder, builder->CreateVector(request.leases)));
}

Result<ReleaseRequest> decode_release_request(std::span<const std::byte> body) {
    MC_ASSIGN_OR_RETURN(const auto message, VerifiedMessage<wire::ReleaseRequest>::parse(body, "release request"));
    MC_RETURN_IF_ERROR(bounded_count(message->leases(), kLeasesMax, "leases"));
    const auto leases = numbers_of(message->leases());
    return ReleaseRequest{.leases = {leases.begin(), leases.end()}};
}

}  // namespace mooncake::store
