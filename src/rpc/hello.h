// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/error.h"
#include "rpc/rpc.h"

// Bodies of the hello and error frames (schema/rpc.fbs). Pure functions; decoders take any bytes.
namespace mooncake::rpc {

/// What one end says of itself.
struct HelloMessage {
    uint16_t major = kProtocolMajor;
    uint16_t minor = kProtocolMinor;
    uint64_t message_bytes_max = 0;  // the largest body it takes
    Hello hello;
};

struct HelloReply {
    HelloMessage message;
    std::string refusal;  // not empty: the server closes the connection
};

Bytes encode_hello(const HelloMessage& message);
Result<HelloMessage> decode_hello(std::span<const std::byte> body);
Bytes encode_hello_reply(const HelloReply& reply);
Result<HelloReply> decode_hello_reply(std::span<const std::byte> body);

/// Empty when the two can talk; else a text for people that names both programs and versions.
std::string refusal_of(const HelloMessage& server, const HelloMessage& client);

/// Long texts are cut.
Bytes encode_error(const Error& error);
/// A code we do not know becomes kInternal; bytes that make no sense become kCorrupt.
Error decode_error(std::span<const std::byte> body);

}  // namespace mooncake::rpc
