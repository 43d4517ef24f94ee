// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/channel.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace mooncake::shm {

namespace {

constexpr std::string_view kEndpointPrefix = "3 ";
constexpr size_t kNameMax = 64;

struct Address {
    sockaddr_un address{};
    socklen_t length = 0;
};

Address abstract_address(const std::string& name) {
    Address result;
    result.address.sun_family = AF_UNIX;
    // A path that begins with a zero byte is not a file; its length counts, not a terminator.
    std::memcpy(result.address.sun_path + 1, name.data(), name.size());
    result.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    return result;
}

Result<net::Socket> open_socket(int flags) {
    net::Socket socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0));
    if (!socket) return fail_errno(Code::kUnavailable, errno, "cannot open a local socket");
    return socket;
}

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

Result<net::Socket> listen_local(const std::string& name) {
    MC_CHECK(name.size() <= kNameMax);
    MC_ASSIGN_OR_RETURN(net::Socket socket, open_socket(SOCK_NONBLOCK));
    const Address address = abstract_address(name);
    if (::bind(socket.fd(), reinterpret_cast<const sockaddr*>(&address.address), address.length) != 0)
        return fail_errno(Code::kUnavailable, errno, "cannot bind local socket {}", name);
    if (::listen(socket.fd(), SOMAXCONN) != 0) return fail_errno(Code::kUnavailable, errno, "cannot listen on local socket {}", name);
    return socket;
}

Result<net::Socket> connect_local(const std::string& name, const net::Patience& patience) {
    MC_ASSIGN_OR_RETURN(net::Socket socket, open_socket(0));
    // While the queue of the listener is full a connect waits, for as long as sends may. Nothing can wake it, so it looks up now and then.
    constexpr Duration kLook = 50ms;
    const Address address = abstract_address(name);
    int reason = 0;
    do {
        const auto left = std::chrono::duration_cast<std::chrono::microseconds>(std::min(patience.deadline.left(), kLook)).count();
        const timeval limit{.tv_sec = 0, .tv_usec = std::max<suseconds_t>(1, left)};
        ::setsockopt(socket.fd(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
        if (::connect(socket.fd(), reinterpret_cast<const sockaddr*>(&address.address), address.length) == 0) return socket;
        reason = errno;
    } while ((reason == EINTR || reason == EAGAIN) && !patience.over());
    return fail_errno(Code::kUnavailable, reason, "cannot connect local socket {}", name);
}

Result<Credentials> credentials_of(int fd) {
    ucred found{};
    socklen_t length = sizeof found;
    if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &found, &length) != 0)
        return fail_errno(Code::kUnavailable, errno, "cannot tell who is at the other end");
    return Credentials{.pid = found.pid, .uid = found.uid};
}

namespace {

Result<> send_bytes(int fd, std::span<iovec> data, std::span<const int> files) {
    MC_CHECK(files.size() <= kFilesMax);
    alignas(cmsghdr) std::array<char, CMSG_SPACE(kFilesMax * sizeof(int))> control{};
    msghdr packet{};
    packet.msg_iov = data.data();
    packet.msg_iovlen = data.size();
    if (!files.empty()) {
        packet.msg_control = control.data();
        packet.msg_controllen = CMSG_SPACE(files.size_bytes());
        cmsghdr* const header = CMSG_FIRSTHDR(&packet);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(files.size_bytes());
        std::memcpy(CMSG_DATA(header), files.data(), files.size_bytes());
    }
    ssize_t sent = 0;
    do sent = ::sendmsg(fd, &packet, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    if (sent >= 0) return {};
    const int error = errno;
    const bool full = error == EAGAIN || error == ENOBUFS || error == ETOOMANYREFS;
    return fail_errno(full ? Code::kBusy : Code::kUnavailable, error, "cannot send a message");
}

}  // namespace

Result<> send_message(int fd, const Message& message, std::span<const int> files) {
    iovec data{.iov_base = const_cast<Message*>(&message), .iov_len = sizeof message};
    return send_bytes(fd, std::span(&data, 1), files);
}

Result<> send_ticket(int fd, const Message& message, const MemoryTicket& ticket, std::span<const int> files) {
    std::array<iovec, 2> data{iovec{.iov_base = const_cast<Message*>(&message), .iov_len = sizeof message},
                              iovec{.iov_base = const_cast<std::byte*>(ticket.data()), .iov_len = ticket.size()}};
    return send_bytes(fd, data, files);
}

Result<Received> receive_message(int fd) {
    alignas(Message) std::array<std::byte, 256> bytes;
    iovec data{.iov_base = bytes.data(), .iov_len = bytes.size()};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(16 * sizeof(int))> control;
    msghdr packet{};
    packet.msg_iov = &data;
    packet.msg_iovlen = 1;
    packet.msg_control = control.data();
    packet.msg_controllen = control.size();
    ssize_t length = 0;
    do length = ::recvmsg(fd, &packet, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (length < 0 && errno == EINTR);
    if (length < 0) return fail_errno(errno == EAGAIN ? Code::kBusy : Code::kUnavailable, errno, "cannot receive a message");

    Received received;
    size_t files = 0;
    for (cmsghdr* header = CMSG_FIRSTHDR(&packet); header != nullptr; header = CMSG_NXTHDR(&packet, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
        for (size_t i = 0; i < (header->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
            int descriptor = -1;
            std::memcpy(&descriptor, CMSG_DATA(header) + i * sizeof(int), sizeof descriptor);
            MemoryFile file(descriptor);  // closed at once when nobody wants it
            if (files < kFilesMax) received.files[files++] = std::move(file);
        }
    }
    if (length == 0) return fail(Code::kUnavailable, "the other end closed the connection");
    if (packet.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) return fail(Code::kCorrupt, "a message was too long");
    const auto whole = std::span(bytes).first(static_cast<size_t>(length));
    MC_ASSIGN_OR_RETURN(received.message, decode_message(whole));
    if (whole.size() >= sizeof(Message) + sizeof(MemoryTicket))
        std::copy_n(whole.begin() + sizeof(Message), sizeof(MemoryTicket), received.ticket.emplace().begin());
    return received;
}

}  // namespace mooncake::shm
