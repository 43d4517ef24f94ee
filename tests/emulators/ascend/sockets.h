// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <utility>

#include "tests/emulators/ascend/state.h"

namespace emu {

struct Patience {
    Clock::time_point until = Clock::time_point::max();
    std::function<bool()> ended;  // or empty
    bool over() const { return (ended && ended()) || Clock::now() >= until; }
};

inline bool wait_for(int socket, short events, const Patience& patience) {
    pollfd waited{socket, events, 0};
    while (!patience.over())
        if (::poll(&waited, 1, 5) > 0) return true;
    return false;
}

inline bool send_all(int socket, const void* bytes, size_t length, const Patience& patience) {
    const auto* at = static_cast<const char*>(bytes);
    while (length > 0) {
        if (!wait_for(socket, POLLOUT, patience)) return false;
        const ssize_t sent = ::send(socket, at, length, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        if (sent <= 0) return false;
        at += sent;
        length -= static_cast<size_t>(sent);
    }
    return true;
}

inline bool receive_all(int socket, void* bytes, size_t length, const Patience& patience) {
    auto* at = static_cast<char*>(bytes);
    while (length > 0) {
        if (!wait_for(socket, POLLIN, patience)) return false;
        const ssize_t got = ::recv(socket, at, length, MSG_DONTWAIT);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        if (got <= 0) return false;
        at += got;
        length -= static_cast<size_t>(got);
    }
    return true;
}

/// "ip:port" or "[ip6]:port".
inline bool split_name(const std::string& name, std::string& host, int& port) {
    const size_t colon = name.rfind(':');
    if (colon == std::string::npos || colon + 1 == name.size()) return false;
    host = name.substr(0, colon);
    if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
    else if (host.find(':') != std::string::npos) return false;
    port = static_cast<int>(std::strtol(name.c_str() + colon + 1, nullptr, 10));
    return port >= 0 && port <= 65535;
}

inline int open_socket(const std::string& host, int port, bool listening, const Patience& patience) {
    addrinfo hints{};
    hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return -1;
    const int made = ::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const int on = 1;
    ::setsockopt(made, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    bool good = made >= 0;
    if (good && listening) {
        ::setsockopt(made, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        good = ::bind(made, found->ai_addr, found->ai_addrlen) == 0 && ::listen(made, 128) == 0;
    } else if (good && ::connect(made, found->ai_addr, found->ai_addrlen) != 0) {
        int error = errno;
        socklen_t size = sizeof error;
        if (error == EINPROGRESS && wait_for(made, POLLOUT, patience)) ::getsockopt(made, SOL_SOCKET, SO_ERROR, &error, &size);
        good = error == 0;
    }
    ::freeaddrinfo(found);
    if (good) return made;
    if (made >= 0) ::close(made);
    return -1;
}

}  // namespace emu
