// SPDX-License-Identifier: Apache-2.0
#include "net/local_socket.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace mooncake::net {

namespace {

struct LocalAddress {
    sockaddr_un address{};
    socklen_t length = 0;
};

LocalAddress abstract_address(const std::string& name) {
    LocalAddress result;
    result.address.sun_family = AF_UNIX;
    // A path that begins with a zero byte is not a file; its length counts, not a terminator.
    std::memcpy(result.address.sun_path + 1, name.data(), name.size());
    result.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    return result;
}

Result<Socket> open_socket(int flags) {
    Socket socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0));
    if (!socket) return fail_errno(Code::kUnavailable, errno, "cannot open a local socket");
    return socket;
}

}  // namespace

Result<Socket> listen_local(const std::string& name) {
    MC_CHECK(name.size() <= kLocalNameMax);
    MC_ASSIGN_OR_RETURN(Socket socket, open_socket(SOCK_NONBLOCK));
    const LocalAddress address = abstract_address(name);
    if (::bind(socket.fd(), reinterpret_cast<const sockaddr*>(&address.address), address.length) != 0)
        return fail_errno(Code::kUnavailable, errno, "cannot bind local socket {}", name);
    if (::listen(socket.fd(), SOMAXCONN) != 0) return fail_errno(Code::kUnavailable, errno, "cannot listen on local socket {}", name);
    return socket;
}

Result<Socket> connect_local(const std::string& name, const Patience& patience) {
    MC_CHECK(name.size() <= kLocalNameMax);
    MC_ASSIGN_OR_RETURN(Socket socket, open_socket(0));
    // While the queue of the listener is full a connect waits, for as long as sends may. Nothing can wake it, so it looks up now and then.
    constexpr Duration kLook = 50ms;
    const LocalAddress address = abstract_address(name);
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

Result<> send_packet(int fd, std::span<iovec> data, std::span<const int> files) {
    MC_CHECK(files.size() <= kPacketFilesMax);
    alignas(cmsghdr) std::array<char, CMSG_SPACE(kPacketFilesMax * sizeof(int))> control{};
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

Result<Packet> receive_packet(int fd, std::span<std::byte> into, bool wait) {
    iovec data{.iov_base = into.data(), .iov_len = into.size()};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(16 * sizeof(int))> control;
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    ssize_t length = 0;
    do length = ::recvmsg(fd, &message, (wait ? 0 : MSG_DONTWAIT) | MSG_CMSG_CLOEXEC);
    while (length < 0 && errno == EINTR);
    if (length < 0) return fail_errno(errno == EAGAIN ? Code::kBusy : Code::kUnavailable, errno, "cannot receive a message");

    Packet packet;
    packet.length = static_cast<size_t>(length);
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
        for (size_t i = 0; i < (header->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
            int descriptor = -1;
            std::memcpy(&descriptor, CMSG_DATA(header) + i * sizeof(int), sizeof descriptor);
            MemoryFile file(descriptor);  // closed at once when nobody wants it
            if (packet.file_count < kPacketFilesMax) packet.files[packet.file_count] = std::move(file);
            ++packet.file_count;
        }
    }
    if (length == 0) return fail(Code::kUnavailable, "the other end closed the connection");
    packet.cut = (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0;
    return packet;
}

}  // namespace mooncake::net
