// SPDX-License-Identifier: Apache-2.0
#include "store/bridge/messages.h"

#include "bridge_generated.h"
#include "store/protocol/message_parts.h"

namespace mooncake::store::bridge {

using namespace parts;

namespace {

constexpr size_t kPiecesMax = size_t{1} << 22, kReplicasTold = size_t{1} << 22;

template <typename T>
flatbuffers::Offset<flatbuffers::Vector<T>> list_to_wire(FlatBufferBuilder& builder, std::span<const T> numbers) {
    return numbers.empty() ? flatbuffers::Offset<flatbuffers::Vector<T>>() : builder.CreateVector(numbers.data(), numbers.size());
}

/// Lists go with the keys one by one, or are not there at all.
template <typename T>
Result<std::vector<T>> list_from_wire(const flatbuffers::Vector<T>* list, size_t keys, std::string_view what) {
    const size_t count = count_of(list);
    if (count != 0 && count != keys) return fail(Code::kCorrupt, "{} {} for {} keys", count, what, keys);
    std::vector<T> numbers(count);
    if (count != 0) std::memcpy(numbers.data(), list->Data(), count * sizeof(T));  // it may lie anywhere
    return numbers;
}

}  // namespace

std::vector<std::byte> encode_request(const Request& request) {
    Builder builder;
    size_t bytes = 0;
    const auto lengths_of = [&](std::span<const std::string_view> texts) {
        uint32_t* lengths = nullptr;
        const auto offset = builder->CreateUninitializedVector<uint32_t>(texts.size(), &lengths);
        for (const std::string_view text : texts) {
            *lengths++ = static_cast<uint32_t>(text.size());
            bytes += text.size();
        }
        return offset;
    };
    const auto key_bytes = lengths_of(request.keys);
    const auto group_bytes = request.groups.empty() ? decltype(key_bytes)() : lengths_of(request.groups);
    TextWriter texts(*builder, bytes);
    for (const std::string_view key : request.keys) texts.add(key);
    for (const std::string_view group : request.groups) texts.add(group);
    const auto counts = list_to_wire(*builder, request.piece_counts);
    const auto offsets = list_to_wire(*builder, request.offsets);
    flatbuffers::Offset<flatbuffers::Vector<const wire::BridgePiece*>> pieces;
    if (!request.pieces.empty())
        pieces = structs_to_wire<wire::BridgePiece>(
            *builder, request.pieces, [](const SharedPiece& piece) { return wire::BridgePiece(piece.offset, piece.length, piece.entry); });
    const auto config = config_to_wire(*builder, request.config);
    flatbuffers::Offset<flatbuffers::String> text;
    if (!request.text.empty()) text = builder->CreateString(request.text);
    return builder.finish(
        wire::CreateBridgeRequest(*builder, key_bytes, texts.offset(), group_bytes, counts, pieces, offsets, config, request.flag, text));
}

Result<ReceivedRequest> decode_request(std::span<const std::byte> body) {
    MC_ASSIGN_OR_RETURN(auto message, VerifiedMessage<wire::BridgeRequest>::parse(body, "request"));
    ReceivedRequest received;
    MC_ASSIGN_OR_RETURN(const size_t keys, bounded_count(message->key_bytes(), kKeysMax, "keys"));
    MC_ASSIGN_OR_RETURN(const std::vector<uint32_t> groups, list_from_wire(message->group_bytes(), keys, "groups"));
    TextReader texts(message->texts());
    received.keys.reserve(keys);
    for (const uint32_t bytes : numbers_of(message->key_bytes())) received.keys.push_back(texts.next(bytes));
    for (const uint32_t bytes : groups) received.groups.push_back(texts.next(bytes));
    MC_RETURN_IF_ERROR(texts.check());
    MC_ASSIGN_OR_RETURN(received.piece_counts, list_from_wire(message->piece_counts(), keys, "counts of pieces"));
    MC_ASSIGN_OR_RETURN(received.offsets, list_from_wire(message->offsets(), keys, "offsets"));
    MC_ASSIGN_OR_RETURN(const size_t pieces, bounded_count(message->pieces(), kPiecesMax, "pieces"));
    uint64_t counted = 0;
    for (const uint32_t count : received.piece_counts) counted += count;
    if (!received.piece_counts.empty() && counted != pieces) return fail(Code::kCorrupt, "{} pieces where {} are named", pieces, counted);
    received.pieces.reserve(pieces);
    for (size_t i = 0; i < pieces; ++i) {
        const auto piece = struct_at(*message->pieces(), i);
        received.pieces.push_back({.entry = piece.entry(), .offset = piece.offset(), .length = piece.length()});
    }
    MC_ASSIGN_OR_RETURN(received.config, config_from_wire(message->config()));
    received.flag = message->flag();
    MC_ASSIGN_OR_RETURN(received.text, bounded_view(message->text(), kPatternBytesMax, "text"));
    received.copy = message.take_copy();
    return received;
}

std::vector<std::byte> encode_reply(const Reply& reply) {
    Builder builder;
    std::vector<uint64_t> lengths;
    std::vector<uint32_t> counts;
    std::vector<flatbuffers::Offset<wire::BridgeReplica>> replicas;
    for (const ValueInfo& value : reply.values) {
        lengths.push_back(value.length);
        counts.push_back(static_cast<uint32_t>(value.replicas.size()));
        for (const ReplicaInfo& replica : value.replicas)
            replicas.push_back(wire::CreateBridgeReplica(*builder, builder->CreateString(replica.segment_name),
                                                         builder->CreateString(replica.endpoint), builder->CreateString(replica.protocol),
                                                         replica.address, replica.length, replica.on_disk));
    }
    const auto numbers = builder->CreateVector(reply.numbers);
    const auto wire_lengths = list_to_wire(*builder, std::span<const uint64_t>(lengths));
    const auto wire_counts = list_to_wire(*builder, std::span<const uint32_t>(counts));
    const auto wire_replicas = replicas.empty() ? flatbuffers::Offset<flatbuffers::Vector<flatbuffers::Offset<wire::BridgeReplica>>>()
                                                : builder->CreateVector(replicas);
    return builder.finish(wire::CreateBridgeReply(*builder, numbers, wire_lengths, wire_counts, wire_replicas));
}

Result<Reply> decode_reply(std::span<const std::byte> body) {
    MC_ASSIGN_OR_RETURN(const auto message, VerifiedMessage<wire::BridgeReply>::parse(body, "answer"));
    Reply reply;
    const size_t count = count_of(message->numbers());
    MC_ASSIGN_OR_RETURN(reply.numbers, list_from_wire(message->numbers(), count, "numbers"));
    MC_ASSIGN_OR_RETURN(const auto lengths, list_from_wire(message->lengths(), count, "lengths"));
    MC_ASSIGN_OR_RETURN(const auto counts, list_from_wire(message->replica_counts(), count, "counts of replicas"));
    MC_ASSIGN_OR_RETURN(const size_t replicas, bounded_count(message->replicas(), kReplicasTold, "replicas"));
    if (lengths.size() != counts.size()) return fail(Code::kCorrupt, "lengths without replicas");
    size_t next = 0;
    for (size_t i = 0; i < lengths.size(); ++i) {
        ValueInfo& value = reply.values.emplace_back();
        value.code = static_cast<StoreCode>(reply.numbers[i]);
        value.length = lengths[i];
        if (counts[i] > replicas - next) return fail(Code::kCorrupt, "fewer replicas than named");
        for (const size_t end = next + counts[i]; next < end; ++next) {
            const auto* const told = message->replicas()->Get(static_cast<flatbuffers::uoffset_t>(next));
            value.replicas.push_back({.segment_name = std::string(view_of(told->segment_name())),
                                      .endpoint = std::string(view_of(told->endpoint())),
                                      .protocol = std::string(view_of(told->protocol())),
                                      .address = told->address(),
                                      .length = told->length(),
                                      .on_disk = told->on_disk()});
        }
    }
    if (next != replicas) return fail(Code::kCorrupt, "more replicas than named");
    return reply;
}

}  // namespace mooncake::store::bridge
