// SPDX-License-Identifier: Apache-2.0
#include "rpc/connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <thread>
#include <utility>

#include "base/other_processes.h"

namespace mooncake::rpc {

namespace {

constexpr int kReceivesMax = 4;         // of one connection before the others have their turn
constexpr int kLastReceivesMax = 1024;  // of one that broke

// Without traffic: 4 s, then a question each second.
constexpr int kProbeAfterSeconds = 4, kProbeEverySeconds = 1, kProbes = 4;

constexpr Duration kLook = 500us;           // of a caller that reads, before it sleeps
constexpr size_t kScratchBytes = 64 << 10;  // of a caller that reads

constexpr Duration kGather = 1ms;       // the kernel itself would wait for 200 ms
constexpr int kLingerBytes = 32 << 10;  // far from what would keep the other side from sending

void set_tcp(int fd, int option, int value) noexcept { ::setsockopt(fd, IPPROTO_TCP, option, &value, sizeof value); }

}  // namespace

Connection::Connection(std::shared_ptr<IoLoop> loop, net::Socket socket, uint64_t body_bytes_max, Reading reading)
    : loop_(std::move(loop)), fd_(socket.fd()), outbox_(std::move(socket)), reader_(body_bytes_max), shared_reading_(reading) {}

Result<> Connection::open() {
    if (shared_reading_ == Reading::kShared) {
        MC_ASSIGN_OR_RETURN(switch_, ReadSwitch::open(*loop_, fd_, shared_from_this()));
        switch_->on();
    } else {
        MC_ASSIGN_OR_RETURN(watch_, IoLoop::Watch::open(*loop_, fd_));
    }
    read_or_pause();
    return {};
}

void Connection::close(const Error& why) {
    if (closed_) return;
    closed_ = true;
    const auto self = shared_from_this();
    watch_.reset();
    if (switch_) switch_->close();
    linger_timer_.reset();
    gather_timer_.reset();
    outbox_.close();
    on_closed(why);
}

void Connection::send(const FrameHeader& header, Bytes body) { follow(outbox_.push(header, std::move(body))); }

void Connection::send_borrowed(const FrameHeader& header, std::span<const std::byte> body) { follow(outbox_.push_borrowed(header, body)); }

void Connection::send_now(const FrameHeader& header, Bytes body, bool gather) {
    follow(outbox_.push_now(header, std::move(body), gather));
    if (!gather || gathering_.exchange(true, std::memory_order_acq_rel)) return;
    if (loop_->on_loop()) return send_gathered_soon();
    loop_->post([self = shared_from_this()] { self->send_gathered_soon(); });
}

void Connection::send_gathered_soon() {
    if (closed_) return;
    if (!gather_timer_) gather_timer_ = std::make_unique<IoLoop::Timer>(*loop_);
    gather_timer_->set(Clock::now() + kGather, [weak = weak_from_this()] {
        const auto self = weak.lock();
        if (!self || self->closed_) return;
        self->gathering_.store(false, std::memory_order_release);  // first: what comes from now on is seen to by whoever sends it
        set_tcp(self->fd_, TCP_NODELAY, 1);                        // it is already; said again, it sends what the kernel has kept
    });
}

void Connection::watch_closely() {
    if (closed_) return;
    set_tcp(fd_, TCP_KEEPIDLE, kProbeAfterSeconds);
    set_tcp(fd_, TCP_KEEPINTVL, kProbeEverySeconds);
    set_tcp(fd_, TCP_KEEPCNT, kProbes);
}

void Connection::close_broken() {
    if (closed_) return;
    // Bytes that arrived before the end are still to be had. After a reset that a send met there is no error left to receive, only an
    // end that looks in order: what counts is the failure of the send.
    broken_ = true;
    if (reads_last_words()) {
        if (!take_turn()) {
            // A caller is reading: it gets what there is, then an end, and leaves the rest to us.
            ::shutdown(fd_, SHUT_RD);
            return;
        }
        for (int i = 0; i < kLastReceivesMax && !closed_; ++i)
            if (receive_on_loop() == Received::kDry) break;
    }
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
        wait_for_room();
        if (!closed_) on_blocked();
    }
}

void Connection::wait_for_room() {
    if (!watch_) {
        auto watch = IoLoop::Watch::open(*loop_, fd_);
        if (!watch) return close(watch.error());
        watch_ = std::move(*watch);
    }
    watch_->wait_writable(shared_from_this());
}

void Connection::on_writable() {
    if (closed_) return;
    if (switch_) watch_.reset();  // or it would wake us for every byte that comes
    follow(outbox_.flush());
    if (!closed_) on_sent();
}

bool Connection::stalled(Time before) const {
    // While we do not read, a frame that stands still is our own doing.
    return (reading_ && partial_since_.load(std::memory_order_acquire) < before) || outbox_.blocked_since() < before;
}

// ---- reading, on the loop

bool Connection::take_turn() {
    if (!switch_) return true;
    Lock lock(turn_mutex_);
    if (turn_ == Turn::kCaller) return false;
    turn_ = Turn::kLoop;
    return true;
}

void Connection::end_turn() {
    if (!switch_) return;
    Lock lock(turn_mutex_);
    turn_ = Turn::kFree;
}

void Connection::on_readable() {
    if (closed_ || !take_turn()) return;  // a caller who reads switches us on again
    reading_ = false;
    take_what_came();
}

void Connection::take_what_came() {
    outbox_.cork();
    Received received = Received::kMore;
    for (int i = 0; i < kReceivesMax && received == Received::kMore; ++i) received = receive_on_loop();
    if (closed_) return;
    follow(outbox_.uncork());
    if (received == Received::kClosed || closed_) return;
    if (broken_ && received == Received::kDry) return close(outbox_.failure());
    on_sent();
    settle_lingering();
    end_turn();
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
        if (self && !self->closed_ && self->take_turn()) self->take_what_came();
    });
}

Connection::Received Connection::receive_on_loop() {
    Error why;
    const Received received = receive(loop_->scratch(), *this, why);
    if (closed_) return Received::kClosed;
    if (received == Received::kEnd && broken_) return Received::kDry;
    if (received == Received::kEnd || received == Received::kBad) {
        close(why);
        return Received::kClosed;
    }
    return received == Received::kMore && !wants_more() ? Received::kAll : received;
}

Connection::Received Connection::receive(std::span<std::byte> scratch, FrameSink& sink, Error& why) {
    const bool direct = !reader_.space().empty();
    const std::span<std::byte> space = direct ? reader_.space() : scratch.subspan(reader_.misalignment());
    const ssize_t got = ::recv(fd_, space.data(), space.size(), MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) return Received::kMore;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Received::kDry;
    if (got <= 0) {
        const int status = got < 0 ? errno : 0;
        why = Error(Code::kUnavailable, status != 0 ? "connection lost" : "peer closed the connection", status);
        return Received::kEnd;
    }
    note_asked_by_others();
    const size_t size = static_cast<size_t>(got);
    const auto result = direct ? reader_.filled(size, sink) : reader_.feed(space.first(size), sink);
    if (!result) {
        why = result.error();
        return Received::kBad;
    }
    partial_since_.store(reader_.partial() ? Clock::now() : Time::max(), std::memory_order_release);
    return size == space.size() ? Received::kMore : Received::kAll;
}

void Connection::read_or_pause() {
    if (closed_ || reading_ || !wants_more()) return;
    reading_ = true;
    if (partial_since_.load(std::memory_order_relaxed) != Time::max()) partial_since_.store(Clock::now(), std::memory_order_release);
    if (!switch_) watch_->wait_readable(shared_from_this());
}

void Connection::resume() {
    loop_->post([self = shared_from_this()] { self->read_or_pause(); });
}

// ---- reading, on a caller's thread

bool Connection::begin_here() {
    Lock lock(turn_mutex_);
    if (!switch_ || turn_ != Turn::kFree || lingering_ || !outbox_.hold()) return false;
    turn_ = Turn::kCaller;
    switch_->off();
    return true;
}

Connection::Received Connection::receive_here(const Completion& done, Deadline deadline, FrameSink& sink, Error& why) {
    if (!scratch_) scratch_.reset(new std::byte[kScratchBytes]);
    bool look = look_ahead_.pays();
    const Deadline look_end = Deadline::after(kLook).earlier(deadline);
    while (!done.done()) {
        if (!look && !net::wait_ready(fd_, POLLIN, deadline)) return Received::kDry;
        const Received received = receive({scratch_.get(), kScratchBytes}, sink, why);
        if (received == Received::kEnd || received == Received::kBad) return received;
        if (!look || received != Received::kDry) continue;
        if (look_end.passed()) {
            look = false;
            look_ahead_.in_vain();
        } else {
            std::this_thread::yield();  // to whom we wait for, perhaps
        }
    }
    if (look) look_ahead_.found();
    return Received::kAll;
}

void Connection::read_here(const Completion& done, Deadline deadline, FrameSink& sink) {
    Error why;
    const Received last = receive_here(done, deadline, sink, why);
    const bool over = last == Received::kEnd || last == Received::kBad;
    {
        Lock lock(turn_mutex_);
        turn_ = Turn::kFree;
        if (!over) switch_->on();  // while the socket is held: once released it may be closed at any moment
        outbox_.release();
    }
    if (over) loop_->post([self = shared_from_this(), why] { self->close(self->broken_ ? self->outbox_.failure() : why); });
}

}  // namespace mooncake::rpc
