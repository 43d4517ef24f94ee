// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/incarnation.h"
#include "base/shared_memory.h"
#include "base/time.h"
#include "device/device.h"
#include "net/local_socket.h"
#include "transport/shm/layout.h"

/// The messages of this transport, over local connections.
namespace mooncake::shm {

using net::connect_local;
using net::Credentials;
using net::credentials_of;
using net::listen_local;

constexpr size_t kFilesMax = net::kPacketFilesMax;

struct Received {
    Message message;
    std::array<MemoryFile, kFilesMax> files;
    std::optional<MemoryTicket> ticket;  // what followed the message, if it was as long as one
};

/// What Transport::endpoint() publishes: "3 NAME".
std::string encode_endpoint(std::string_view socket_name);
/// The socket name. kNotSupported for another version or anything that makes no sense.
Result<std::string> decode_endpoint(std::string_view text);
/// kCorrupt unless it is a message of our version or newer. Longer ones are accepted: the rest is for newer versions.
Result<Message> decode_message(std::span<const std::byte> bytes);

/// Never blocks. kBusy: the other end does not read; kUnavailable: it is gone.
Result<> send_message(int fd, const Message& message, std::span<const int> files = {});
/// As send_message(), with a ticket behind the message.
Result<> send_ticket(int fd, const Message& message, const MemoryTicket& ticket, std::span<const int> files = {});
/// Never blocks. kBusy: nothing there; kUnavailable: the other end is gone; kCorrupt.
Result<Received> receive_message(int fd);

}  // namespace mooncake::shm
