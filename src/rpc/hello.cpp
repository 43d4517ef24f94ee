// SPDX-License-Identifier: Apache-2.0
#include "rpc/hello.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/verified_message.h"
#include "rpc_generated.h"

namespace mooncake::rpc {

namespace {

constexpr size_t kSoftwareBytesMax = 256;
constexpr size_t kTextBytesMax = 2048;  // of a refusal or an error

constexpr std::pair<Code, wire::ErrorCode> kCodes[] = {
    {Code::kInvalidArgument, wire::ErrorCode::InvalidArgument},
    {Code::kNotFound, wire::ErrorCode::NotFound},
    {Code::kAlreadyExists, wire::ErrorCode::AlreadyExists},
    {Code::kOverlap, wire::ErrorCode::Overlap},
    {Code::kNotRegistered, wire::ErrorCode::NotRegistered},
    {Code::kNoSpace, wire::ErrorCode::NoSpace},
    {Code::kBusy, wire::ErrorCode::Busy},
    {Code::kUnavailable, wire::ErrorCode::Unavailable},
    {Code::kStale, wire::ErrorCode::Stale},
    {Code::kTimedOut, wire::ErrorCode::TimedOut},
    {Code::kCancelled, wire::ErrorCode::Cancelled},
    {Code::kRefused, wire::ErrorCode::Refused},
    {Code::kCorrupt, wire::ErrorCode::Corrupt},
    {Code::kNotSupported, wire::ErrorCode::NotSupported},
    {Code::kInternal, wire::ErrorCode::Internal},
};

wire::ErrorCode code_to_wire(Code code) {
    const auto* found = std::find_if(std::begin(kCodes), std::end(kCodes), [&](const auto& pair) { return pair.first == code; });
    return found != std::end(kCodes) ? found->second : wire::ErrorCode::Internal;
}

Code code_from_wire(wire::ErrorCode code) {
    const auto* found = std::find_if(std::begin(kCodes), std::end(kCodes), [&](const auto& pair) { return pair.second == code; });
    return found != std::end(kCodes) ? found->first : Code::kInternal;
}

template <typename Table>
Bytes finish(flatbuffers::FlatBufferBuilder& builder, flatbuffers::Offset<Table> root) {
    builder.Finish(root);
    const auto* data = reinterpret_cast<const std::byte*>(builder.GetBufferPointer());
    return Bytes(data, data + builder.GetSize());
}

flatbuffers::Offset<flatbuffers::String> cut_text(flatbuffers::FlatBufferBuilder& builder, std::string_view text, size_t bytes_max) {
    text = text.substr(0, bytes_max);
    return builder.CreateString(text.data(), text.size());
}

flatbuffers::Offset<wire::Hello> add_hello(flatbuffers::FlatBufferBuilder& builder, const HelloMessage& message) {
    const auto software = cut_text(builder, message.hello.software, kSoftwareBytesMax);
    return wire::CreateHello(builder, message.major, message.minor, message.hello.features, message.hello.incarnation.value,
                             message.message_bytes_max, software);
}

Result<HelloMessage> read_hello(const wire::Hello& table) {
    HelloMessage message{.major = table.major(), .minor = table.minor(), .message_bytes_max = table.message_bytes_max()};
    message.hello.incarnation = {table.incarnation()};
    message.hello.features = table.features();
    MC_ASSIGN_OR_RETURN(message.hello.software, bounded_text(table.software(), kSoftwareBytesMax, "software text"));
    return message;
}

std::string_view software_of(const HelloMessage& message) {
    return message.hello.software.empty() ? std::string_view("unknown software") : std::string_view(message.hello.software);
}

}  // namespace

Bytes encode_hello(const HelloMessage& message) {
    flatbuffers::FlatBufferBuilder builder(128);
    return finish(builder, add_hello(builder, message));
}

Result<HelloMessage> decode_hello(std::span<const std::byte> body) {
    MC_ASSIGN_OR_RETURN(const auto message, VerifiedMessage<wire::Hello>::parse(body, "hello"));
    return read_hello(*message);
}

Bytes encode_hello_reply(const HelloReply& reply) {
    flatbuffers::FlatBufferBuilder builder(256);
    const auto hello = add_hello(builder, reply.message);
    const auto refusal = cut_text(builder, reply.refusal, kTextBytesMax);
    return finish(builder, wire::CreateHelloReply(builder, hello, refusal));
}

Result<HelloReply> decode_hello_reply(std::span<const std::byte> body) {
    MC_ASSIGN_OR_RETURN(const auto message, VerifiedMessage<wire::HelloReply>::parse(body, "hello reply"));
    if (message->hello() == nullptr) return fail(Code::kCorrupt, "a hello reply without hello");
    HelloReply reply;
    MC_ASSIGN_OR_RETURN(reply.message, read_hello(*message->hello()));
    MC_ASSIGN_OR_RETURN(reply.refusal, bounded_text(message->refusal(), kTextBytesMax, "refusal"));
    return reply;
}

std::string refusal_of(const HelloMessage& server, const HelloMessage& client) {
    if (server.major == client.major) return {};
    return format_text("server {} speaks protocol {}, client {} speaks protocol {}", software_of(server), server.major, software_of(client),
                       client.major);
}

Bytes encode_error(const Error& error) {
    flatbuffers::FlatBufferBuilder builder(256);
    const auto message = cut_text(builder, error.message(), kTextBytesMax);
    return finish(builder, wire::CreateErrorReply(builder, code_to_wire(error.code()), error.system_errno(), message));
}

Error decode_error(std::span<const std::byte> body) {
    const auto reply = VerifiedMessage<wire::ErrorReply>::parse(body, "error reply");
    if (!reply) return reply.error();
    auto message = bounded_text((*reply)->message(), body.size(), "error text");
    if (!message) return std::move(message).error();
    return Error(code_from_wire((*reply)->code()), std::move(*message), (*reply)->system_errno());
}

}  // namespace mooncake::rpc
