// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/channel.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace mooncake::shm {

namespace {

constexpr std::string_view kEndpointPrefix = "3 ";
constexpr size_t kNameMax = net::kLocalNameMax;

}  // namespace

std::string encode_endpoint(std::string_view socket_name) { return std::string(kEndpointPrefix).append(socket_name); }

Result<std::string> decode_endpoint(std::string_view text) {
    if (!text.starts_with(kEndpointPrefix)) return fail(Code::kNotSupported, "shared-memory endpoint of another version");
    text.remove_prefix(kEndpointPrefix.size());
    const auto allowed = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-'; };
    if (text.empty() || text.size() > kNameMax || !std::all_of(text.begin(), text.end(), allowed))
        return fail(Code::kNotSupported, "malformed shared-memory endpoint");
    return std::string(text);
}

Result<Message> decode_message(std::span<const std::byte> bytes) {
    Message message;
    if (bytes.size() < sizeof message) return fail(Code::kCorrupt, "message of {} bytes", bytes.size());
    std::memcpy(&message, bytes.data(), sizeof message);
    if (message.magic != kMessageMagic || message.version == 0) return fail(Code::kCorrupt, "not one of our messages");
    return message;
}

Result<> send_message(int fd, const Message& message, std::span<const int> files) {
    iovec data{.iov_base = const_cast<Message*>(&message), .iov_len = sizeof message};
    return net::send_packet(fd, std::span(&data, 1), files);
}

Result<> send_ticket(int fd, const Message& message, const MemoryTicket& ticket, std::span<const int> files) {
    std::array<iovec, 2> data{iovec{.iov_base = const_cast<Message*>(&message), .iov_len = sizeof message},
                              iovec{.iov_base = const_cast<std::byte*>(ticket.data()), .iov_len = ticket.size()}};
    return net::send_packet(fd, data, files);
}

Result<Received> receive_message(int fd) {
    alignas(Message) std::array<std::byte, 256> bytes;
    MC_ASSIGN_OR_RETURN(net::Packet packet, net::receive_packet(fd, bytes));
    if (packet.cut) return fail(Code::kCorrupt, "a message was too long");
    Received received;
    received.files = std::move(packet.files);
    const auto whole = std::span(bytes).first(packet.length);
    MC_ASSIGN_OR_RETURN(received.message, decode_message(whole));
    if (whole.size() >= sizeof(Message) + sizeof(MemoryTicket))
        std::copy_n(whole.begin() + sizeof(Message), sizeof(MemoryTicket), received.ticket.emplace().begin());
    return received;
}

}  // namespace mooncake::shm
