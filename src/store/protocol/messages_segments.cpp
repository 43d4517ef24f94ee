// SPDX-License-Identifier: Apache-2.0
#include "store/protocol/messages_segments.h"

#include "store/protocol/behind_clients.h"
#include "store/protocol/message_parts.h"
#include "store/protocol/messages_objects.h"

namespace mooncake::store {

using namespace parts;

namespace {

flatbuffers::Offset<wire::Segment> segment_to_wire(FlatBufferBuilder& builder, const SegmentSpec& segment) {
    const auto name = builder.CreateString(segment.name);
    const auto endpoint = builder.CreateSharedString(segment.endpoint);
    const auto protocol = builder.CreateSharedString(segment.protocol);
    const auto service = segment.service.empty() ? 0 : builder.CreateSharedString(segment.service);
    const wire::Id id = id_to_wire(segment.id);
    return wire::CreateSegment(builder, &id, name, segment.base, segment.size, endpoint, protocol, segment.incarnation.value,
                               static_cast<uint8_t>(segment.kind), service);
}

Result<SegmentSpec> segment_from_wire(const wire::Segment* table) {
    if (table == nullptr) return fail(Code::kCorrupt, "a message without its segment");
    if (table->kind() > static_cast<uint8_t>(SegmentKind::kDisk)) return fail(Code::kCorrupt, "a segment of kind {}", table->kind());
    SegmentSpec segment{.id = id_from_wire<SegmentId>(table->id()),
                        .base = table->base(),
                        .size = table->size(),
                        .endpoint = {},
                        .protocol = {},
                        .incarnation = {table->incarnation()},
                        .kind = static_cast<SegmentKind>(table->kind())};
    MC_ASSIGN_OR_RETURN(segment.name, bounded_text(table->name(), kNameBytesMax, "segment name"));
    MC_ASSIGN_OR_RETURN(segment.endpoint, bounded_text(table->endpoint(), kNameBytesMax, "endpoint"));
    MC_ASSIGN_OR_RETURN(segment.protocol, bounded_text(table->protocol(), kNameBytesMax, "protocol"));
    MC_ASSIGN_OR_RETURN(segment.service, bounded_text(table->service(), kNameBytesMax, "address of a service"));
    return segment;
}

wire::HeldObject object_to_wire(const HeldObject& object) {
    return wire::HeldObject(object.offset, object.length, object.generation, object.checksum, duration_to_wire(object.soft_pin_left),
                            id_to_wire(object.writer), static_cast<uint32_t>(object.tenant.size()),
                            static_cast<uint32_t>(object.key.size()), static_cast<uint32_t>(object.group.size()),
                            static_cast<uint8_t>(object.data_type), static_cast<uint8_t>(object.hard_pin));
}

flatbuffers::Offset<wire::HeldSegment> held_to_wire(FlatBufferBuilder& builder, const HeldSegment& held) {
    size_t bytes = 0;
    for (const HeldObject& object : held.objects) bytes += object.tenant.size() + object.key.size() + object.group.size();
    TextWriter texts(builder, bytes);
    for (const HeldObject& object : held.objects) {
        texts.add(object.tenant);
        texts.add(object.key);
        texts.add(object.group);
    }
    const auto objects = structs_to_wire<wire::HeldObject>(builder, held.objects, object_to_wire);
    const auto writes = structs_to_wire<wire::HeldWrite>(
        builder, held.writes, [](const HeldWrite& write) { return wire::HeldWrite(write.offset, write.length, id_to_wire(write.writer)); });
    const auto quarantined = structs_to_wire<wire::HeldRest>(builder, held.quarantined, [](const HeldQuarantine& quarantine) {
        return wire::HeldRest(quarantine.offset, quarantine.length, duration_to_wire(quarantine.left));
    });
    flatbuffers::Offset<flatbuffers::Vector<const wire::Id*>> writers;
    if (std::any_of(held.quarantined.begin(), held.quarantined.end(),
                    [](const HeldQuarantine& quarantine) { return static_cast<bool>(quarantine.writer); }))
        writers = structs_to_wire<wire::Id>(builder, held.quarantined,
                                            [](const HeldQuarantine& quarantine) { return id_to_wire(quarantine.writer); });
    const auto segment = segment_to_wire(builder, held.segment);
    return wire::CreateHeldSegment(builder, segment, objects, texts.offset(), writes, quarantined, held.exact, held.more, writers);
}

HeldObject object_from_wire(const wire::HeldObject& object, TextReader& texts) {
    HeldObject held;
    held.tenant = texts.next(object.tenant_bytes());
    held.key = texts.next(object.key_bytes());
    held.group = texts.next(object.group_bytes());
    held.offset = object.offset();
    held.length = object.length();
    held.generation = object.generation();
    held.checksum = object.checksum();
    held.data_type = static_cast<ObjectDataType>(object.data_type());
    held.hard_pin = object.hard_pin() != 0;
    held.soft_pin_left = duration_from_wire(object.soft_pin_left_ns());
    held.writer = id_from_wire<ClientId>(&object.writer());
    return held;
}

/// The spans are set by the caller, once nothing moves any more.
Result<ReceivedRemount::Held> held_from_wire(const wire::HeldSegment& table) {
    ReceivedRemount::Held held;
    TextReader texts(table.texts());
    held.objects.reserve(count_of(table.objects()));
    for (size_t i = 0; i < count_of(table.objects()); ++i) held.objects.push_back(object_from_wire(struct_at(*table.objects(), i), texts));
    MC_RETURN_IF_ERROR(texts.check());
    held.writes.reserve(count_of(table.writes()));
    for (size_t i = 0; i < count_of(table.writes()); ++i) {
        const auto write = struct_at(*table.writes(), i);
        held.writes.push_back({.offset = write.offset(), .length = write.length(), .writer = id_from_wire<ClientId>(&write.writer())});
    }
    held.quarantined.reserve(count_of(table.rests()));
    for (size_t i = 0; i < count_of(table.rests()); ++i) {
        const auto quarantine = struct_at(*table.rests(), i);
        held.quarantined.push_back(
            {.offset = quarantine.offset(), .length = quarantine.length(), .left = duration_from_wire(quarantine.left_ns())});
        if (i >= count_of(table.rest_writers())) continue;
        const wire::Id writer = struct_at(*table.rest_writers(), i);
        held.quarantined.back().writer = id_from_wire<ClientId>(&writer);
    }
    return held;
}

}  // namespace

std::vector<std::byte> encode_mount_request(const MountRequest& request) {
    Builder builder;
    const auto segment = segment_to_wire(*builder, request.segment);
    const wire::Id client = id_to_wire(request.client);
    return builder.finish(wire::CreateMountRequest(*builder, &client, segment));
}

Result<MountRequest> decode_mount_request(std::span<const std::byte> body) {
    MC_ASSIGN_OR_RETURN(const auto message, VerifiedMessage<wire::MountRequest>::parse(body, "mount request"));
    MountRequest request{.client = id_from_wire<ClientId>(message->client()), .segment = {}};
    MC_ASSIGN_OR_RETURN(request.segment, segment_from_wire(message->segment()));
    return request;
}

std::vector<std::byte> encode_remount_request(const RemountRequest& request) {
    Builder builder;
    std::vector<flatbuffers::Offset<wire::HeldSegment>> segments;
    segments.reserve(request.segments.size());
    for (const HeldSegment& held : request.segments) segments.push_back(held_to_wire(*builder, held));
    const auto list = builder->CreateVector(segments);
    const wire::Id client = id_to_wire(request.client);
    flatbuffers::Offset<flatbuffers::Vector<const wire::Behind*>> behind;
    if (!request.behind.empty()) behind = structs_to_wire<wire::Behind>(*builder, request.behind, behind_to_wire);
    const wire::HistoryPoint heard = point_to_wire(request.heard);
    return builder.finish(wire::CreateRemountRequest(*builder, &client, request.epoch, list, behind, &heard, request.heard_update,
                                                     request.life.value, request.remembered_update));
}

Result<ReceivedRemount> decode_remount_request(std::span<const std::byte> body) {
    MC_ASSIGN_OR_RETURN(auto message, VerifiedMessage<wire::RemountRequest>::parse(body, "remount request"));
    MC_ASSIGN_OR_RETURN(const size_t count, bounded_count(message->segments(), kHeldSegmentsMax, "segments"));
    ReceivedRemount received;
    received.held.reserve(count);
    received.segments.reserve(count);
    for (size_t i = 0; i < count; ++i) {
        const wire::HeldSegment& table = *message->segments()->Get(static_cast<flatbuffers::uoffset_t>(i));
        MC_ASSIGN_OR_RETURN(auto held, held_from_wire(table));
        MC_ASSIGN_OR_RETURN(SegmentSpec segment, segment_from_wire(table.segment()));
        received.held.push_back(std::move(held));
        const auto& kept = received.held.back();
        received.segments.push_back({.segment = std::move(segment),
                                     .objects = kept.objects,
                                     .writes = kept.writes,
                                     .quarantined = kept.quarantined,
                                     .exact = table.exact(),
                                     .more = table.more()});
    }
    MC_RETURN_IF_ERROR(bounded_count(message->behind(), BehindClients::kMax, "clients that are behind"));
    received.behind = behind_from_wire(message->behind());
    received.request = {.client = id_from_wire<ClientId>(message->client()),
                        .epoch = message->epoch(),
                        .segments = received.segments,
                        .behind = received.behind,
                        .heard = point_from_wire(message->heard()),
                        .heard_update = message->heard_update(),
                        .life = {message->life()},
                        .remembered_update = message->remembered_update()};
    received.copy = message.take_copy();
    return received;
}

std::vector<std::byte> encode_remount_reply(const RemountReply& reply) {
    Builder builder;
    const auto segments = structs_to_wire<wire::RemountedSegment>(*builder, reply.segments, [](const RemountReply::Segment& segment) {
        return wire::RemountedSegment(segment.adopted, segment.stale, segment.refused, static_cast<int32_t>(segment.code));
    });
    std::vector<flatbuffers::Offset<wire::MissedUpdate>> missed;
    for (const std::vector<std::byte>& update : reply.missed) {
        const auto bytes = builder->CreateVector(reinterpret_cast<const uint8_t*>(update.data()), update.size());
        missed.push_back(wire::CreateMissedUpdate(*builder, bytes));
    }
    flatbuffers::Offset<flatbuffers::Vector<flatbuffers::Offset<wire::MissedUpdate>>> list;
    if (!missed.empty()) list = builder->CreateVector(missed);
    return builder.finish(wire::CreateRemountReply(*builder, segments, list, reply.missed_lost));
}

Result<RemountReply> decode_remount_reply(std::span<const std::byte> body) {
    MC_ASSIGN_OR_RETURN(const auto message, VerifiedMessage<wire::RemountReply>::parse(body, "remount reply"));
    RemountReply reply;
    reply.segments.reserve(count_of(message->segments()));
    for (size_t i = 0; i < count_of(message->segments()); ++i) {
        const auto segment = struct_at(*message->segments(), i);
        reply.segments.push_back({.code = static_cast<StoreCode>(segment.code()),
                                  .adopted = segment.adopted(),
                                  .stale = segment.stale(),
                                  .refused = segment.refused()});
    }
    for (size_t i = 0; i < count_of(message->missed()); ++i) {
        const auto bytes = std::as_bytes(numbers_of(message->missed()->Get(static_cast<flatbuffers::uoffset_t>(i))->update()));
        reply.missed.emplace_back(bytes.begin(), bytes.end());
    }
    reply.missed_lost = message->missed_lost();
    return reply;
}

std::vector<std::byte> encode_unmount_request(const UnmountRequest& request) {
    Builder builder;
    const wire::Id client = id_to_wire(request.client);
    const wire::Id segment = id_to_wire(request.segment);
    return builder.finish(wire::CreateUnmountRequest(*builder, &client, &segment, duration_to_wire(request.grace)));
}

Result<UnmountRequest> decode_unmount_request(std::span<const std::byte> body) {
    MC_ASSIGN_OR_RETURN(const auto message, VerifiedMessage<wire::UnmountRequest>::parse(body, "unmount request"));
    return UnmountRequest{.client = id_from_wire<ClientId>(message->client()),
                          .segment = id_from_wire<SegmentId>(message->segment()),
                          .grace = duration_from_wire(message->grace_ns())};
}

std::vector<std::byte> encode_client_request(const ClientId& client) {
    Builder builder;
    const wire::Id id = id_to_wire(client);
    return builder.finish(wire::CreateClientRequest(*builder, &id));
}

Result<ClientId> decode_client_request(std::span<const std::byte> body) {
    MC_ASSIGN_OR_RETURN(const auto message, VerifiedMessage<wire::ClientRequest>::parse(body, "client request"));
    return id_from_wire<ClientId>(message->client());
}

std::vector<std::byte> encode_heartbeat_reply(const HeartbeatReply& reply) {
    Builder builder;
    return builder.finish(
        wire::CreatePingReply(*builder, static_cast<uint8_t>(reply.status), reply.epoch, duration_to_wire(reply.client_ttl)));
}

Result<HeartbeatReply> decode_heartbeat_reply(std::span<const std::byte> body) {
    MC_ASSIGN_OR_RETURN(const auto message, VerifiedMessage<wire::PingReply>::parse(body, "heartbeat reply"));
    // A status that a later master invents is no plain yes.
    return HeartbeatReply{.status = message->status() == 0 ? HeartbeatStatus::kOk : HeartbeatStatus::kNeedRemount,
                          .epoch = message->epoch(),
                          .client_ttl = duration_from_wire(message->client_ttl_ns())};
}

std::vector<std::byte> encode_failure_report(const FailureReport& report) {
    Builder builder;
    const auto segments = structs_to_wire<wire::Id>(*builder, report.segments, [](const SegmentId& id) { return id_to_wire(id); });
    const wire::Id client = id_to_wire(report.client);
    return builder.finish(wire::CreateFailureReport(*builder, &client, segments));
}

Result<ReceivedFailureReport> decode_failure_report(std::span<const std::byte> body) {
    MC_ASSIGN_OR_RETURN(const auto message, VerifiedMessage<wire::FailureReport>::parse(body, "failure report"));
    MC_ASSIGN_OR_RETURN(const size_t count, bounded_count(message->segments(), kHeldSegmentsMax, "segments"));
    ReceivedFailureReport received;
    received.segments.reserve(count);
    for (size_t i = 0; i < count; ++i) {
        const auto segment = struct_at(*message->segments(), i);
        received.segments.push_back(id_from_wire<SegmentId>(&segment));
    }
    received.report = {.client = id_from_wire<ClientId>(message->client()), .segments = received.segments};
    return received;
}

std::vector<std::byte> encode_segments_reply(const SegmentsReply& reply) {
    Builder builder;
    std::vector<flatbuffers::Offset<wire::MountedSegment>> segments;
    segments.reserve(reply.segments.size());
    for (const SegmentsReply::Entry& entry : reply.segments) {
        const auto segment = segment_to_wire(*builder, entry.segment);
        const wire::Id client = id_to_wire(entry.client);
        segments.push_back(
            wire::CreateMountedSegment(*builder, entry.number, segment, static_cast<uint8_t>(entry.status), &client, entry.used_bytes));
    }
    const auto list = builder->CreateVector(segments);
    return builder.finish(wire::CreateSegmentsReply(*builder, list, reply.epoch));
}

Result<SegmentsReply> decode_segments_reply(std::span<const std::byte> body) {
    MC_ASSIGN_OR_RETURN(const auto message, VerifiedMessage<wire::SegmentsReply>::parse(body, "segments reply"));
    SegmentsReply reply{.segments = {}, .epoch = message->epoch()};
    reply.segments.reserve(count_of(message->segments()));
    for (size_t i = 0; i < count_of(message->segments()); ++i) {
        const wire::MountedSegment& entry = *message->segments()->Get(static_cast<flatbuffers::uoffset_t>(i));
        MC_ASSIGN_OR_RETURN(SegmentSpec segment, segment_from_wire(entry.segment()));
        const bool known = entry.status() <= static_cast<uint8_t>(SegmentStatus::kUnmounting);
        reply.segments.push_back({.number = entry.number(),
                                  .segment = std::move(segment),
                                  .status = known ? static_cast<SegmentStatus>(entry.status()) : SegmentStatus::kUndefined,
                                  .client = id_from_wire<ClientId>(entry.client()),
                                  .used_bytes = entry.used_bytes()});
    }
    return reply;
}

std::vector<std::byte> encode_code_reply(StoreCode code) {
    Builder builder;
    return builder.finish(wire::CreateCodeReply(*builder, static_cast<int32_t>(code)));
}

Result<StoreCode> decode_code_reply(std::span<const std::byte> body) {
    MC_ASSIGN_OR_RETURN(const auto message, VerifiedMessage<wire::CodeReply>::parse(body, "code reply"));
    return static_cast<StoreCode>(message->code());
}

}  // namespace mooncake::store
