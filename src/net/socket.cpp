// SPDX-License-Identifier: Apache-2.0
#include "net/socket.h"

#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/incarnation.h"
#include "net/resolver.h"

namespace mooncake::net {

namespace {

void set_int(int fd, int level, int option, int value) noexcept { ::setsockopt(fd, level, option, &value, sizeof value); }

Result<Listener> listen_at(SocketAddress address, int backlog) {
    UniqueFd fd(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) return fail_errno(Code::kUnavailable, errno, "cannot create a socket");
    set_int(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
    if (address.family() == AF_INET6) set_int(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
    if (::bind(fd.get(), address.get(), address.length) != 0 || ::listen(fd.get(), backlog) != 0) {
        const int reason = errno;  // read before to_string() can change it
        const Code code = reason == EADDRINUSE ? Code::kAlreadyExists : Code::kUnavailable;
        return fail_errno(code, reason, "cannot listen on port {} ({})", address.port(), address.to_string());
    }
    address.length = sizeof address.storage;
    ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address.storage), &address.length);
    return Listener{.socket = Socket(fd.release()), .port = address.port()};
}

Result<Listener> listen_family(int family, uint16_t port, int backlog) {
    SocketAddress address;
    if (family == AF_INET6) {
        auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
        v6->sin6_family = AF_INET6;
        v6->sin6_addr = in6addr_any;
        v6->sin6_port = htons(port);
        address.length = sizeof *v6;
    } else {
        auto* v4 = reinterpret_cast<sockaddr_in*>(&address.storage);
        v4->sin_family = AF_INET;
        v4->sin_addr.s_addr = htonl(INADDR_ANY);
        v4->sin_port = htons(port);
        address.length = sizeof *v4;
    }
    return listen_at(address, backlog);
}

Result<Socket> connect_one(const SocketAddress& address, const Patience& patience) {
    Socket socket(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket) return fail_errno(Code::kUnavailable, errno, "cannot create a socket");
    if (::connect(socket.fd(), address.get(), address.length) != 0) {
        const int reason = errno;  // read before to_string() can change it
        if (reason != EINPROGRESS) return fail_errno(Code::kUnavailable, reason, "cannot connect {}", address.to_string());
        if (!wait_ready(socket.fd(), POLLOUT, patience))
            return fail_errno(Code::kUnavailable, ETIMEDOUT, "cannot connect {}", address.to_string());
        int status = 0;
        socklen_t size = sizeof status;
        ::getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &status, &size);
        if (status != 0) return fail_errno(Code::kUnavailable, status, "cannot connect {}", address.to_string());
    }
    tune(socket.fd());
    return socket;
}

/// True when both ends of the connection are on this machine.
bool stays_on_host(int fd) noexcept {
    sockaddr_in6 ours{}, theirs{};
    socklen_t ours_size = sizeof ours, theirs_size = sizeof theirs;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&ours), &ours_size) != 0) return false;
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&theirs), &theirs_size) != 0) return false;
    if (ours.sin6_family != theirs.sin6_family) return false;
    if (ours.sin6_family == AF_INET6) return std::memcmp(&ours.sin6_addr, &theirs.sin6_addr, sizeof ours.sin6_addr) == 0;
    return reinterpret_cast<sockaddr_in&>(ours).sin_addr.s_addr == reinterpret_cast<sockaddr_in&>(theirs).sin_addr.s_addr;
}

}  // namespace

void Socket::forget_unsent() noexcept {
    const linger hard{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(fd(), SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
}

void Socket::reset_hard() noexcept {
    if (!fd_) return;
    forget_unsent();
    reset();
}

Result<> Socket::replace_hard(Socket other) noexcept {
    forget_unsent();
    if (::dup3(other.fd(), fd(), O_CLOEXEC) == fd()) return {};
    return fail_errno(Code::kUnavailable, errno, "cannot give a connection the number {}", fd());
}

Result<Listener> listen_on(uint16_t port, int backlog) {
    auto both = listen_family(AF_INET6, port, backlog);
    if (both || both.error().code() == Code::kAlreadyExists) return both;
    return listen_family(AF_INET, port, backlog);
}

namespace {

/// Whether another port may do better.
bool concerns_the_port(const Error& error) noexcept { return error.system_errno() == EADDRINUSE || error.system_errno() == EACCES; }

Result<Listener> listen_at_first(std::vector<SocketAddress>& addresses, const std::string& host, uint16_t port, int backlog) {
    Error last(Code::kUnavailable, format_text("'{}' has no address", host));
    for (SocketAddress& address : addresses) {
        address.set_port(port);
        auto listener = listen_at(address, backlog);
        if (listener) return listener;
        if (!concerns_the_port(last)) last = std::move(listener).error();
    }
    return Unexpected(std::move(last));
}

}  // namespace

Result<Listener> listen_on(const std::string& host, uint16_t port, int backlog) {
    MC_ASSIGN_OR_RETURN(auto addresses, resolve(host, port));
    return listen_at_first(addresses, host, port, backlog);
}

Result<Listener> listen_in_range(const std::string& host, uint16_t port_min, uint16_t port_max, int backlog) {
    if (port_min > port_max || port_min == 0) return fail(Code::kInvalidArgument, "no port range: {}-{}", port_min, port_max);
    constexpr uint64_t kTries = 500;
    const uint64_t count = static_cast<uint64_t>(port_max) - port_min + 1;
    const uint64_t first = random_u64() % count;
    std::vector<SocketAddress> addresses;
    if (!host.empty()) {
        MC_ASSIGN_OR_RETURN(addresses, resolve(host, port_min));
    }
    Error last(Code::kUnavailable, "no port tried");
    for (uint64_t i = 0; i < std::min(kTries, count); ++i) {
        const auto port = static_cast<uint16_t>(port_min + (first + i) % count);
        auto listener = host.empty() ? listen_on(port, backlog) : listen_at_first(addresses, host, port, backlog);
        if (listener || !concerns_the_port(listener.error())) return listener;
        last = std::move(listener).error();
    }
    return Unexpected(std::move(last).with_context(format_text("no free port in {}-{}", port_min, port_max)));
}

Result<Socket> connect_to(const std::string& host, uint16_t port, const Patience& patience) {
    MC_ASSIGN_OR_RETURN(const auto addresses, resolve(host, port, patience.deadline));
    Error last(Code::kUnavailable, format_text("'{}' has no address", host));
    for (size_t i = 0; i < addresses.size(); ++i) {
        // Each address gets its share of the time, so that a silent one leaves some for the next.
        const auto rest = static_cast<Duration::rep>(addresses.size() - i);
        const Deadline share = rest == 1 ? patience.deadline : Deadline::after(patience.deadline.left() / rest);
        auto socket = connect_one(addresses[i], {share, patience.interrupt});
        if (socket) return socket;
        last = std::move(socket).error();
    }
    return Unexpected(std::move(last));
}

void tune(int fd) noexcept {
    set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set_int(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set_int(fd, IPPROTO_TCP, TCP_KEEPIDLE, 5);
    set_int(fd, IPPROTO_TCP, TCP_KEEPINTVL, 2);
    set_int(fd, IPPROTO_TCP, TCP_KEEPCNT, 5);
    // A path without a network has no congestion to avoid, and pacing (bbr) costs it a quarter of its speed, and timers for each message.
    if (stays_on_host(fd)) ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
}

void limit_unconfirmed(int fd, Duration time) noexcept {
    set_int(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(std::chrono::duration_cast<std::chrono::milliseconds>(time).count()));
}

Result<std::unique_ptr<Interrupt>> Interrupt::create() {
    Socket event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!event) return fail_errno(Code::kUnavailable, errno, "cannot create an eventfd");
    return std::unique_ptr<Interrupt>(new Interrupt(std::move(event)));
}

void Interrupt::set() noexcept {
    set_.store(true, std::memory_order_release);
    const uint64_t one = 1;
    (void)!::write(event_.fd(), &one, sizeof one);  // nobody takes it, so it stays readable
}

bool wait_ready(int fd, short events, const Patience& patience) noexcept {
    const nfds_t count = patience.interrupt == nullptr ? 1 : 2;
    for (;;) {
        std::array<pollfd, 2> entries{pollfd{.fd = fd, .events = events, .revents = 0}};
        if (count == 2) entries[1] = {.fd = patience.interrupt->fd(), .events = POLLIN, .revents = 0};
        const int ready = ::poll(entries.data(), count, patience.deadline.left_ms());
        if (entries[0].revents != 0) return true;
        if (ready < 0 && errno != EINTR) return true;  // let the next system call report it
        if (patience.over()) return false;
    }
}

Result<> send_all(int fd, const void* data, size_t size, const Patience& patience) {
    const char* at = static_cast<const char*>(data);
    while (size > 0) {
        const ssize_t sent = ::send(fd, at, size, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent > 0) {
            at += sent;
            size -= static_cast<size_t>(sent);
        } else if (errno == EAGAIN) {
            if (!wait_ready(fd, POLLOUT, patience)) return fail(Code::kTimedOut, "peer does not take our bytes");
        } else if (errno != EINTR) {
            return fail_errno(Code::kUnavailable, errno, "cannot send");
        }
    }
    return {};
}

Result<> receive_all(int fd, void* data, size_t size, const Patience& patience) {
    char* at = static_cast<char*>(data);
    while (size > 0) {
        const ssize_t got = ::recv(fd, at, size, MSG_DONTWAIT);
        if (got > 0) {
            at += got;
            size -= static_cast<size_t>(got);
        } else if (got == 0) {
            return fail(Code::kUnavailable, "peer closed the connection");
        } else if (errno == EAGAIN) {
            if (!wait_ready(fd, POLLIN, patience)) return fail(Code::kTimedOut, "peer does not answer");
        } else if (errno != EINTR) {
            return fail_errno(Code::kUnavailable, errno, "cannot receive");
        }
    }
    return {};
}

}  // namespace mooncake::net
