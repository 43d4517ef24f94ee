// SPDX-License-Identifier: Apache-2.0
#include "rpc/testing/raw_peer.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace mooncake::rpc::testing {

RawPeer RawPeer::connect(uint16_t port) {
    auto socket = net::connect_to("127.0.0.1", port, Deadline::after(kPatience));
    MC_CHECK(socket);
    return RawPeer(std::move(*socket));
}

Result<> RawPeer::send(std::span<const std::byte> bytes) {
    return net::send_all(fd(), bytes.data(), bytes.size(), Deadline::after(kPatience));
}

Result<> RawPeer::send_frame(FrameHeader header, const Bytes& body) { return send(frame_bytes(header, body)); }

Result<RawFrame> RawPeer::read_frame() {
    const Deadline deadline = Deadline::after(kPatience);
    HeaderBytes header;
    MC_RETURN_IF_ERROR(net::receive_all(fd(), header.data(), header.size(), deadline));
    RawFrame frame;
    MC_ASSIGN_OR_RETURN(frame.header, decode_header(header));
    frame.body.resize(frame.header.body_bytes);
    MC_RETURN_IF_ERROR(net::receive_all(fd(), frame.body.data(), frame.body.size(), deadline));
    std::byte padding[kFrameAlignment];
    MC_RETURN_IF_ERROR(net::receive_all(fd(), padding, padding_after(frame.body.size()), deadline));
    return frame;
}

Result<HelloReply> RawPeer::hello(const HelloMessage& message) {
    MC_RETURN_IF_ERROR(send_frame({.kind = FrameKind::kHello}, encode_hello(message)));
    MC_ASSIGN_OR_RETURN(const RawFrame frame, read_frame());
    if (frame.header.kind != FrameKind::kHelloReply) return fail(Code::kCorrupt, "no hello reply");
    return decode_hello_reply(frame.body);
}

Result<HelloMessage> RawPeer::answer_hello(const HelloReply& reply) {
    MC_ASSIGN_OR_RETURN(const RawFrame frame, read_frame());
    if (frame.header.kind != FrameKind::kHello) return fail(Code::kCorrupt, "no hello");
    MC_RETURN_IF_ERROR(send_frame({.kind = FrameKind::kHelloReply}, encode_hello_reply(reply)));
    return decode_hello(frame.body);
}

bool RawPeer::closed_by_peer(Duration patience) {
    const Deadline deadline = Deadline::after(patience);
    char ignored[4096];
    while (net::wait_ready(fd(), POLLIN, deadline)) {
        const ssize_t got = ::recv(fd(), ignored, sizeof ignored, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return true;
    }
    return false;
}

RawServer::RawServer(int backlog) {
    auto listener = net::listen_on(0, backlog);
    MC_CHECK(listener);
    listener_ = std::move(*listener);
}

RawPeer RawServer::accept() {
    MC_CHECK(net::wait_ready(listener_.socket.fd(), POLLIN, Deadline::after(kPatience)));
    const int fd = ::accept4(listener_.socket.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    MC_CHECK(fd >= 0);
    return RawPeer(net::Socket(fd));
}

bool RawServer::quiet_for(Duration duration) { return !net::wait_ready(listener_.socket.fd(), POLLIN, Deadline::after(duration)); }

Bytes frame_bytes(FrameHeader header, const Bytes& body) {
    header.body_bytes = static_cast<uint32_t>(body.size());
    const HeaderBytes head = encode_header(header);
    Bytes bytes(kHeaderBytes + body.size() + padding_after(body.size()));
    std::copy(head.begin(), head.end(), bytes.begin());
    std::copy(body.begin(), body.end(), bytes.begin() + kHeaderBytes);
    return bytes;
}

Bytes bytes_of(std::string_view text) {
    const auto bytes = std::as_bytes(std::span(text));
    return Bytes(bytes.begin(), bytes.end());
}

std::string text_of(std::span<const std::byte> bytes) { return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()); }

}  // namespace mooncake::rpc::testing
