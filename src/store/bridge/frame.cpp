// SPDX-License-Identifier: Apache-2.0
#include "store/bridge/frame.h"

#include <cstring>

namespace mooncake::store::bridge {

std::string socket_name(uint16_t port) { return format_text("mooncake_client_{}.sock", port); }

void Frame::keep() {
    if (!own.empty() || body.empty()) return;
    own.assign(body.begin(), body.end());
    body = own;
}

Result<> send_frame(int fd, Head head, std::span<const std::byte> body, int file) {
    head.body_bytes = body.size();
    std::array<iovec, 2> data{iovec{.iov_base = &head, .iov_len = sizeof head},
                              iovec{.iov_base = const_cast<std::byte*>(body.data()), .iov_len = body.size()}};
    std::array<int, net::kPacketFilesMax> files{};
    size_t count = 0;
    if (file >= 0) files[count++] = file;
    if (body.size() <= kPacketBytesMax - sizeof head) return net::send_packet(fd, data, std::span(files).first(count));
    MC_ASSIGN_OR_RETURN(const MemoryFile memory, MemoryFile::create("mooncake_message", body.size()));
    {
        MC_ASSIGN_OR_RETURN(const Mapping mapping, memory.map(true, body.size()));
        std::memcpy(mapping.address(), body.data(), body.size());
    }
    files[count++] = memory.fd();
    return net::send_packet(fd, std::span(data).first(1), std::span(files).first(count));
}

Result<Frame> receive_frame(int fd, PacketRoom& room, bool wait) {
    MC_ASSIGN_OR_RETURN(net::Packet packet, net::receive_packet(fd, room.bytes, wait));
    Frame frame;
    if (packet.cut || packet.length < sizeof frame.head) return fail(Code::kCorrupt, "a packet of {} bytes", packet.length);
    std::memcpy(&frame.head, room.bytes.data(), sizeof frame.head);
    const Head& head = frame.head;
    if (head.magic != Head::kMagic || head.version != Head::kVersion || head.kind < Kind::kAnswer || head.kind > Kind::kLast)
        return fail(Code::kCorrupt, "not one of our packets");
    const size_t inside = packet.length - sizeof head;
    frame.body = std::span<const std::byte>(room.bytes).subspan(sizeof head, inside);
    const bool apart = inside == 0 && head.body_bytes > kPacketBytesMax - sizeof head;
    const size_t files = packet.file_count - (apart ? 1 : 0);
    if (packet.file_count < (apart ? 1u : 0u) || files > 1) return fail(Code::kCorrupt, "{} files with a packet", packet.file_count);
    if (!apart && head.body_bytes != inside) return fail(Code::kCorrupt, "{} bytes where {} are named", inside, head.body_bytes);
    if (files == 1) frame.file = std::move(packet.files[0]);
    if (!apart) return frame;
    if (head.body_bytes > kBodyBytesMax) return fail(Code::kCorrupt, "a message of {} bytes", head.body_bytes);
    // A copy: what others can still change must not be looked at twice.
    auto mapping = packet.files[files].map(false, head.body_bytes);
    if (!mapping || mapping->length() > kBodyBytesMax + (1 << 20)) return fail(Code::kCorrupt, "a message in a file that cannot be used");
    frame.own.assign(mapping->address(), mapping->address() + head.body_bytes);
    frame.body = frame.own;
    return frame;
}

}  // namespace mooncake::store::bridge
