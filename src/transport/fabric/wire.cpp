// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/wire.h"

#include <bit>

#include "base/verified_message.h"
#include "fabric_generated.h"

namespace mooncake::fabric {

namespace {

using flatbuffers::FlatBufferBuilder;
using flatbuffers::Offset;
template <typename T>
using Vector = flatbuffers::Vector<T>;

template <typename Table>
std::vector<std::byte> finish(FlatBufferBuilder& builder, Offset<Table> root) {
    builder.Finish(root);
    const auto* data = reinterpret_cast<const std::byte*>(builder.GetBufferPointer());
    return std::vector<std::byte>(data, data + builder.GetSize());
}

auto bytes_to_wire(FlatBufferBuilder& builder, const std::vector<std::byte>& bytes) {
    return builder.CreateVector(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
}

Result<std::vector<std::byte>> bytes_from_wire(const Vector<uint8_t>* field, std::string_view what) {
    if (field == nullptr) return std::vector<std::byte>();
    if (field->size() > kNameBytesMax) return fail(Code::kCorrupt, "{} of {} bytes", what, field->size());
    const auto* data = reinterpret_cast<const std::byte*>(field->data());
    return std::vector<std::byte>(data, data + field->size());
}

auto rails_to_wire(FlatBufferBuilder& builder, const std::vector<RailRecord>& rails) {
    std::vector<Offset<wire::Rail>> entries;
    for (const RailRecord& rail : rails) {
        const auto nic = builder.CreateString(rail.nic);
        const auto provider = builder.CreateString(rail.provider);
        const auto name = bytes_to_wire(builder, rail.name);
        entries.push_back(wire::CreateRail(builder, nic, provider, rail.protocol, rail.address_format, name, rail.epoch,
                                           rail.virtual_addresses, rail.operation_bytes_max, rail.speed_bits, rail.numa_node));
    }
    return builder.CreateVector(entries);
}

Result<std::vector<RailRecord>> rails_from_wire(const Vector<Offset<wire::Rail>>* entries) {
    std::vector<RailRecord> rails;
    if (entries == nullptr) return rails;
    if (entries->size() > kRailsMax) return fail(Code::kCorrupt, "{} rails; at most {} are allowed", entries->size(), kRailsMax);
    for (const wire::Rail* entry : *entries) {
        RailRecord rail{.protocol = entry->protocol(),
                        .address_format = entry->address_format(),
                        .epoch = entry->epoch(),
                        .virtual_addresses = entry->virtual_addresses(),
                        .operation_bytes_max = entry->operation_bytes_max(),
                        .speed_bits = entry->speed_bits(),
                        .numa_node = entry->numa_node()};
        MC_ASSIGN_OR_RETURN(rail.nic, bounded_text(entry->nic(), kTextBytesMax, "NIC name"));
        MC_ASSIGN_OR_RETURN(rail.provider, bounded_text(entry->provider(), kTextBytesMax, "provider name"));
        MC_ASSIGN_OR_RETURN(rail.name, bytes_from_wire(entry->name(), "an endpoint name"));
        if (rail.name.empty() || rail.epoch == 0 || rail.operation_bytes_max == 0)
            return fail(Code::kCorrupt, "rail {} lacks its name, epoch or operation size", rails.size());
        rails.push_back(std::move(rail));
    }
    return rails;
}

auto states_to_wire(FlatBufferBuilder& builder, const std::vector<RailState>& states) {
    std::vector<Offset<wire::RailState>> entries;
    for (const RailState& state : states) {
        const auto name = bytes_to_wire(builder, state.name);
        entries.push_back(wire::CreateRailState(builder, state.rail, state.epoch, name));
    }
    return builder.CreateVector(entries);
}

Result<std::vector<RailState>> states_from_wire(const Vector<Offset<wire::RailState>>* entries, size_t rails) {
    std::vector<RailState> states;
    if (entries == nullptr) return states;
    if (entries->size() > kRailsMax) return fail(Code::kCorrupt, "the states of {} rails", entries->size());
    for (const wire::RailState* entry : *entries) {
        if (entry->rail() >= rails || entry->epoch() == 0)
            return fail(Code::kCorrupt, "rail {} of {} in epoch {}", entry->rail(), rails, entry->epoch());
        RailState state{.rail = entry->rail(), .epoch = entry->epoch(), .name = {}};
        MC_ASSIGN_OR_RETURN(state.name, bytes_from_wire(entry->name(), "an endpoint name"));
        states.push_back(std::move(state));
    }
    return states;
}

Offset<wire::Chunk> chunk_to_wire(FlatBufferBuilder& builder, const ChunkRecord& chunk) {
    const auto keys = builder.CreateVector(chunk.keys);
    return wire::CreateChunk(builder, chunk.address, chunk.length, chunk.rails, keys, chunk.read_only);
}

Result<ChunkRecord> chunk_from_wire(const wire::Chunk& entry, size_t rails, uint64_t last_end) {
    const uint64_t known = rails >= kRailsMax ? UINT64_MAX : (uint64_t{1} << rails) - 1;
    ChunkRecord chunk{
        .address = entry.address(), .length = entry.length(), .rails = entry.rails(), .keys = {}, .read_only = entry.read_only()};
    const bool wraps = chunk.length == 0 || chunk.length > UINT64_MAX - chunk.address;
    if (wraps || chunk.address < last_end)
        return fail(Code::kCorrupt, "a chunk of {} bytes at {:#x} after one that ends at {:#x}", chunk.length, chunk.address, last_end);
    const size_t keys = entry.keys() == nullptr ? 0 : entry.keys()->size();
    if ((chunk.rails & ~known) != 0 || keys != static_cast<size_t>(std::popcount(chunk.rails)))
        return fail(Code::kCorrupt, "a chunk on rails {:#x} of {} with {} keys", chunk.rails, rails, keys);
    for (size_t i = 0; i < keys; ++i) chunk.keys.push_back(entry.keys()->Get(static_cast<flatbuffers::uoffset_t>(i)));
    return chunk;
}

Result<std::vector<ChunkRecord>> chunks_from_wire(const Vector<Offset<wire::Chunk>>* entries, size_t rails) {
    std::vector<ChunkRecord> chunks;
    if (entries == nullptr) return chunks;
    if (entries->size() > kChunksMax) return fail(Code::kCorrupt, "{} chunks in one answer", entries->size());
    uint64_t last_end = 0;
    for (const wire::Chunk* entry : *entries) {
        MC_ASSIGN_OR_RETURN(ChunkRecord chunk, chunk_from_wire(*entry, rails, last_end));
        last_end = chunk.address + chunk.length;
        chunks.push_back(std::move(chunk));
    }
    return chunks;
}

Result<ResolveRequest> resolve_from_wire(const wire::ResolveRequest& message) {
    const ResolveRequest request{.address = message.address(), .length = message.length()};
    if (request.length == 0 || request.length > UINT64_MAX - request.address)
        return fail(Code::kCorrupt, "a question for {} bytes at {:#x}", request.length, request.address);
    return request;
}

Result<FenceRequest> fence_from_wire(const wire::FenceRequest& message, size_t rails) {
    FenceRequest request;
    if (message.rails() == nullptr || message.rails()->size() == 0 || message.rails()->size() > kRailsMax)
        return fail(Code::kCorrupt, "a fence of no rail, or of too many");
    for (size_t i = 0; i < message.rails()->size(); ++i) {
        const wire::ClosedRail entry = struct_at(*message.rails(), i);
        if (entry.rail() >= rails || entry.epoch() == 0)
            return fail(Code::kCorrupt, "a fence of rail {} of {} in epoch {}", entry.rail(), rails, entry.epoch());
        request.rails.push_back({.rail = entry.rail(), .epoch = entry.epoch()});
    }
    return request;
}

/// The body of a request, and what kind it is.
struct EncodedBody {
    wire::Body kind;
    Offset<void> offset;
};

EncodedBody body_to_wire(FlatBufferBuilder& builder, const ResolveRequest& request) {
    return {wire::Body::ResolveRequest, wire::CreateResolveRequest(builder, request.address, request.length).Union()};
}
EncodedBody body_to_wire(FlatBufferBuilder& builder, const FenceRequest& request) {
    std::vector<wire::ClosedRail> rails;
    for (const auto& closed : request.rails) rails.emplace_back(closed.epoch, closed.rail);
    const auto list = builder.CreateVectorOfStructs(rails);
    return {wire::Body::FenceRequest, wire::CreateFenceRequest(builder, list).Union()};
}
EncodedBody body_to_wire(FlatBufferBuilder& builder, const PingRequest& request) {
    const auto rails = rails_to_wire(builder, request.rails);
    return {wire::Body::PingRequest, wire::CreatePingRequest(builder, rails).Union()};
}

}  // namespace

std::optional<uint64_t> ChunkRecord::key(uint32_t rail) const noexcept {
    if (rail >= kRailsMax || (rails >> rail & 1) == 0) return std::nullopt;
    const uint64_t below = rails & ((uint64_t{1} << rail) - 1);
    return keys[static_cast<size_t>(std::popcount(below))];
}

void ChunkRecord::set_key(uint32_t rail, uint64_t key) {
    MC_CHECK(rail < kRailsMax);
    const uint64_t bit = uint64_t{1} << rail;
    const auto index = std::popcount(rails & (bit - 1));
    if ((rails & bit) != 0) keys[static_cast<size_t>(index)] = key;
    else keys.insert(keys.begin() + index, key);
    rails |= bit;
}

std::string encode_endpoint(const EndpointBlob& blob) {
    FlatBufferBuilder builder(1024);
    const auto profile = builder.CreateString(blob.profile);
    const auto rails = rails_to_wire(builder, blob.rails);
    builder.Finish(wire::CreateEndpoint(builder, kWireVersion, profile, rails));
    return std::string(reinterpret_cast<const char*>(builder.GetBufferPointer()), builder.GetSize());
}

Result<EndpointBlob> decode_endpoint(std::string_view bytes) {
    const auto span = std::as_bytes(std::span(bytes.data(), bytes.size()));
    MC_ASSIGN_OR_RETURN(const auto message, VerifiedMessage<wire::Endpoint>::parse(span, "fabric endpoint"));
    if (message->version() != kWireVersion)
        return fail(Code::kRefused, "the peer speaks version {} of the fabric transport, we speak {}", message->version(), kWireVersion);
    EndpointBlob blob;
    MC_ASSIGN_OR_RETURN(blob.profile, bounded_text(message->profile(), kTextBytesMax, "profile name"));
    MC_ASSIGN_OR_RETURN(blob.rails, rails_from_wire(message->rails()));
    if (blob.rails.empty()) return fail(Code::kCorrupt, "a fabric endpoint without rails");
    return blob;
}

std::vector<std::byte> encode_request(const Request& request) {
    FlatBufferBuilder builder(256);
    const EncodedBody body = std::visit([&](const auto& alternative) { return body_to_wire(builder, alternative); }, request.body);
    return finish(builder, wire::CreateRequest(builder, request.initiator.value, body.kind, body.offset));
}

Result<Request> decode_request(std::span<const std::byte> bytes, size_t rails) {
    MC_ASSIGN_OR_RETURN(const auto message, VerifiedMessage<wire::Request>::parse(bytes, "fabric request"));
    Request request{.initiator = {message->initiator()}, .body = {}};
    if (!request.initiator) return fail(Code::kCorrupt, "a fabric request of nobody");
    if (const auto* const resolve = message->body_as_ResolveRequest()) {
        MC_ASSIGN_OR_RETURN(request.body, resolve_from_wire(*resolve));
    } else if (const auto* const fence = message->body_as_FenceRequest()) {
        MC_ASSIGN_OR_RETURN(request.body, fence_from_wire(*fence, rails));
    } else if (const auto* const ping = message->body_as_PingRequest()) {
        PingRequest body;
        MC_ASSIGN_OR_RETURN(body.rails, rails_from_wire(ping->rails()));
        request.body = std::move(body);
    } else {
        return fail(Code::kNotSupported, "a fabric request of kind {}", static_cast<int>(message->body_type()));
    }
    return request;
}

std::vector<std::byte> encode_answer(const ResolveAnswer& answer) {
    FlatBufferBuilder builder(4096);
    std::vector<Offset<wire::Chunk>> chunks;
    for (const ChunkRecord& chunk : answer.chunks) chunks.push_back(chunk_to_wire(builder, chunk));
    const auto list = builder.CreateVector(chunks);
    const auto rails = states_to_wire(builder, answer.rails);
    const auto probe = answer.probe ? chunk_to_wire(builder, *answer.probe) : Offset<wire::Chunk>();
    return finish(builder, wire::CreateResolveAnswer(builder, list, answer.complete, rails, probe));
}

std::vector<std::byte> encode_answer(const RailsAnswer& answer) {
    FlatBufferBuilder builder(1024);
    const auto rails = states_to_wire(builder, answer.rails);
    return finish(builder, wire::CreateRailsAnswer(builder, rails));
}

Result<ResolveAnswer> decode_resolve_answer(std::span<const std::byte> bytes, size_t rails) {
    MC_ASSIGN_OR_RETURN(const auto message, VerifiedMessage<wire::ResolveAnswer>::parse(bytes, "answer with keys"));
    ResolveAnswer answer{.chunks = {}, .complete = message->complete(), .rails = {}};
    MC_ASSIGN_OR_RETURN(answer.chunks, chunks_from_wire(message->chunks(), rails));
    MC_ASSIGN_OR_RETURN(answer.rails, states_from_wire(message->rails(), rails));
    if (message->probe() != nullptr) {
        MC_ASSIGN_OR_RETURN(answer.probe, chunk_from_wire(*message->probe(), rails, 0));
    }
    return answer;
}

Result<RailsAnswer> decode_rails_answer(std::span<const std::byte> bytes, size_t rails) {
    MC_ASSIGN_OR_RETURN(const auto message, VerifiedMessage<wire::RailsAnswer>::parse(bytes, "answer with rails"));
    RailsAnswer answer;
    MC_ASSIGN_OR_RETURN(answer.rails, states_from_wire(message->rails(), rails));
    return answer;
}

size_t encoded_bytes(const ChunkRecord& chunk) noexcept {
    constexpr size_t kTableBytes = 64;  // its fields, their table, the lengths and the padding
    return kTableBytes + chunk.keys.size() * sizeof(uint64_t);
}

}  // namespace mooncake::fabric
