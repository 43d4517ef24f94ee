// SPDX-License-Identifier: Apache-2.0
#include "rpc/connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

namespace mooncake::rpc {

namespace {

constexpr int kReceivesMax = 4;         // of one connection before the others have their turn
constexpr int kLastReceivesMax = 1024;  // of one that broke

// Without traffic: 4 s, then a question each second. With traffic that nobody confirms: 8 s in all.
constexpr int kProbeAfterSeconds = 4, kProbeEverySeconds = 1, kProbes = 4, kUnconfirmedMs = 8000;

constexpr int kLingerBytes = 32 << 10;  // far from what would keep the other side from sending

void set_tcp(int fd, int option, int value) noexcept { ::setsockopt(fd, IPPROTO_TCP, option, &value, sizeof value); }

}  // namespace

Connection::Connection(std::shared_ptr<IoLoop> loop, net::Socket socket, uint64_t body_bytes_max)
    : loop_(std::move(loop)), fd_(socket.fd()), outbox_(std::move(socket)), reader_(body_bytes_max) {}

Result<> Connection::open() {
    MC_ASSIGN_OR_RETURN(watch_, IoLoop::Watch::open(*loop_, fd_));
    read_or_pause();
    return {};
}

void Connection::close(const Error& why) {
    if (closed_) return;
    closed_ = true;
    const auto self = shared_from_this();
    watch_.reset();
    linger_timer_.reset();
    outbox_.close();
    on_closed(why);
}

void Connection::send(const FrameHeader& header, Bytes body) { follow(outbox_.push(header, std::move(body))); }

void Connection::send_borrowed(const FrameHeader& header, std::span<const std::byte> body) { follow(outbox_.push_borrowed(header, body)); }

void Connection::send_now(const FrameHeader& header, Bytes body) { follow(outbox_.push_now(header, std::move(body))); }

void Connection::watch_closely() {
    if (closed_) return;
    set_tcp(fd_, TCP_KEEPIDLE, kProbeAfterSeconds);
    set_tcp(fd_, TCP_KEEPINTVL, kProbeEverySeconds);
    set_tcp(fd_, TCP_KEEPCNT, kProbes);
    set_tcp(fd_, TCP_USER_TIMEOUT, kUnconfirmedMs);
}

void Connection::close_broken() {
    // Bytes that arrived before the end are still to be had. After a reset that a send met there is no error left to receive, only an
    // end that looks in order: what counts is the failure of the send.
    broken_ = true;
    if (reads_last_words())
        for (int i = 0; i < kLastReceivesMax && !closed_; ++i)
            if (receive() == Received::kDry) break;
    close(outbox_.failure());
}

void Connection::follow(Outbox::Next next) {
    if (next == Outbox::Next::kNothing) return;
    if (next == Outbox::Next::kBroken) {
        // Never here and now: closing tells callers, and the sender may be one of them.
        loop_->post([self = shared_from_this()] { self->close_broken(); });
    } else if (!loop_->on_loop()) {
        loop_->post([self = shared_from_this(), next] { self->follow(next); });
    } else if (!closed_) {
        watch_->wait_writable(shared_from_this());
        on_blocked();
    }
}

void Connection::on_writable() {
    if (closed_) return;
    follow(outbox_.flush());
    if (!closed_) on_sent();
}

bool Connection::stalled(Time before) const {
    // While we do not read, a frame that stands still is our own doing.
    return (reading_ && reader_.partial() && received_at_ < before) || outbox_.blocked_since() < before;
}

void Connection::on_readable() {
    if (closed_) return;
    reading_ = false;
    take_what_came();
}

void Connection::take_what_came() {
    outbox_.cork();
    Received received = Received::kMore;
    for (int i = 0; i < kReceivesMax && received == Received::kMore; ++i) received = receive();
    if (closed_) return;
    follow(outbox_.uncork());
    if (received == Received::kClosed || closed_) return;
    on_sent();
    settle_lingering();
    read_or_pause();
}

void Connection::settle_lingering() {
    const Duration time = std::exchange(linger_, Duration::zero());
    const bool linger = time > Duration::zero();
    if (linger != lingering_) {
        lingering_ = linger;
        const int least = linger ? kLingerBytes : 1;
        ::setsockopt(fd_, SOL_SOCKET, SO_RCVLOWAT, &least, sizeof least);
    }
    if (!linger) {
        if (linger_timer_) linger_timer_->cancel();
        return;
    }
    if (!linger_timer_) linger_timer_ = std::make_unique<IoLoop::Timer>(*loop_);
    linger_timer_->set(Clock::now() + time, [weak = weak_from_this()] {
        const auto self = weak.lock();
        if (self && !self->closed_) self->take_what_came();
    });
}

Connection::Received Connection::receive() {
    const bool direct = !reader_.space().empty();
    const std::span<std::byte> space = direct ? reader_.space() : loop_->scratch().subspan(reader_.misalignment());
    const ssize_t got = ::recv(fd_, space.data(), space.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) return Received::kMore;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Received::kDry;
    if (got <= 0 && broken_) return Received::kDry;
    if (got <= 0) {
        const int status = got < 0 ? errno : 0;
        close(Error(Code::kUnavailable, status != 0 ? "connection lost" : "peer closed the connection", status));
        return Received::kClosed;
    }
    const size_t size = static_cast<size_t>(got);
    const auto result = direct ? reader_.filled(size, *this) : reader_.feed(space.first(size), *this);
    if (closed_) return Received::kClosed;
    if (!result) {
        close(result.error());
        return Received::kClosed;
    }
    return size == space.size() && wants_more() ? Received::kMore : Received::kAll;
}

void Connection::read_or_pause() {
    if (closed_ || reading_ || !wants_more()) return;
    reading_ = true;
    if (reader_.partial()) received_at_ = Clock::now();
    watch_->wait_readable(shared_from_this());
}

void Connection::resume() {
    loop_->post([self = shared_from_this()] { self->read_or_pause(); });
}

}  // namespace mooncake::rpc
