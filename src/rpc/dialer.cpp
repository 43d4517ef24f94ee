// SPDX-License-Identifier: Apache-2.0
#include "rpc/dialer.h"

#include <netdb.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "net/resolver.h"

namespace mooncake::rpc {

Dialer::Dialer(std::shared_ptr<IoLoop> loop, net::HostPort target, Deadline deadline, Done done)
    : loop_(std::move(loop)), target_(std::move(target)), deadline_(deadline), done_(std::move(done)), timer_(*loop_) {}

void Dialer::start() {
    if (net::is_numeric_host(target_.host)) return on_resolved(net::resolve(target_.host, target_.port));
    timer_.set(deadline_.at(), [self = shared_from_this()] { self->on_timeout(); });
    net::resolve_in_background(target_.host, target_.port, [self = shared_from_this()](Result<std::vector<net::SocketAddress>> addresses) {
        self->loop_->post([self, addresses = std::move(addresses)] { self->on_resolved(addresses); });
    });
}

void Dialer::cancel() {
    done_ = nullptr;
    timer_.cancel();
    watch_.reset();
    socket_.reset();
}

void Dialer::finish(Result<net::Socket> result) {
    const auto self = shared_from_this();
    const Done done = std::exchange(done_, nullptr);
    cancel();
    if (done) done(std::move(result));
}

void Dialer::on_resolved(Result<std::vector<net::SocketAddress>> addresses) {
    if (!done_ || resolved_) return;
    resolved_ = true;
    if (!addresses) return finish(Unexpected(std::move(addresses).error().with_context("resolve")));
    addresses_ = std::move(*addresses);
    last_ = error(Code::kUnavailable, "connect: '{}' has no address", target_.host);
    try_next();
}

void Dialer::try_next() {
    while (next_ < addresses_.size() && !deadline_.passed()) {
        const auto share = deadline_.left() / static_cast<int64_t>(addresses_.size() - next_);
        auto connected = begin(addresses_[next_++]);
        if (connected && *connected) return finish(std::move(socket_));
        if (connected) {
            timer_.set(Clock::now() + share, [self = shared_from_this()] { self->on_timeout(); });
            return;
        }
        last_ = std::move(connected).error();
    }
    finish(Unexpected(std::move(last_)));
}

/// True: connected at once; false: under way.
Result<bool> Dialer::begin(const net::SocketAddress& address) {
    watch_.reset();
    socket_ = net::Socket(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    int reason = errno;  // always read before to_string() can change it
    if (!socket_) return fail_errno(Code::kUnavailable, reason, "connect {}: cannot create a socket", address.to_string());
    if (::connect(socket_.fd(), address.get(), address.length) == 0) return true;
    reason = errno;
    if (reason != EINPROGRESS) return fail_errno(Code::kUnavailable, reason, "connect {}", address.to_string());
    MC_ASSIGN_OR_RETURN(watch_, IoLoop::Watch::open(*loop_, socket_.fd()));
    watch_->wait_writable(shared_from_this());
    return false;
}

void Dialer::on_writable() {
    if (!done_ || !watch_) return;
    int status = 0;
    socklen_t size = sizeof status;
    ::getsockopt(socket_.fd(), SOL_SOCKET, SO_ERROR, &status, &size);
    net::SocketAddress peer;
    peer.length = sizeof peer.storage;
    // An event of the previous address' socket may still have been under way.
    if (status == 0 && ::getpeername(socket_.fd(), reinterpret_cast<sockaddr*>(&peer.storage), &peer.length) != 0 && errno == ENOTCONN)
        return watch_->wait_writable(shared_from_this());
    watch_.reset();
    if (status == 0) return finish(std::move(socket_));
    give_up_on(Error(Code::kUnavailable, format_text("connect {}", addresses_[next_ - 1].to_string()), status));
}

void Dialer::give_up_on(Error error) {
    last_ = std::move(error);
    try_next();
}

void Dialer::on_timeout() {
    if (!done_) return;
    if (!resolved_) return finish(fail_errno(Code::kUnavailable, EAI_AGAIN, "resolve: no answer for '{}'", target_.host));
    give_up_on(Error(Code::kUnavailable, format_text("connect {}: no answer", addresses_[next_ - 1].to_string()), ETIMEDOUT));
}

}  // namespace mooncake::rpc
