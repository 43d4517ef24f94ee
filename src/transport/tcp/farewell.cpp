// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/farewell.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "transport/tcp/policy.h"

namespace mooncake::tcp {

Farewell::Farewell(const net::SocketAddress& address, const Hello& hello, Duration patience)
    : hello_(hello), deadline_(Deadline::after(patience)),
      socket_(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    if (!socket_) return;
    net::tune(socket_.fd());
    if (::connect(socket_.fd(), address.get(), address.length) != 0 && errno != EINPROGRESS) socket_.reset();
}

bool Farewell::finish(const Target& target) {
    if (!socket_ || !net::wait_ready(socket_.fd(), POLLOUT, deadline_)) return false;
    const auto bytes = encode(hello_);
    if (!net::send_all(socket_.fd(), bytes.data(), bytes.size(), deadline_)) return false;
    const auto greeted = receive_hello_reply(target, std::move(socket_), hello_, deadline_);
    return greeted || greeted.error().code() == Code::kStale;
}

Duration farewell_patience(int fd) noexcept {
    tcp_info info{};
    socklen_t size = sizeof info;
    if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return kFarewellMax;
    return std::min<Duration>(kFarewellMin + kFarewellTrips * std::chrono::microseconds(info.tcpi_rtt), kFarewellMax);
}

}  // namespace mooncake::tcp
