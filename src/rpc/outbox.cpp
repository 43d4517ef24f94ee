// SPDX-License-Identifier: Apache-2.0
#include "rpc/outbox.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace mooncake::rpc {

namespace {

constexpr size_t kGatherFrames = 64;  // in one system call
constexpr int kRoundsMax = 8;         // system calls one sender makes, mostly for others, before the I/O thread takes over
constexpr std::array<std::byte, kFrameAlignment> kZeros{};

}  // namespace

struct Outbox::Gather {
    std::array<iovec, kGatherFrames * 3> parts;
    size_t count = 0;

    /// Adds what follows the first `skip` bytes of header, body and padding.
    void add(const HeaderBytes& header, std::span<const std::byte> body, size_t skip) {
        add_part(header, skip);
        add_part(body, skip);
        add_part(std::span(kZeros).first(padding_after(body.size())), skip);
    }

private:
    void add_part(std::span<const std::byte> bytes, size_t& skip) {
        const size_t skipped = std::min(skip, bytes.size());
        skip -= skipped;
        bytes = bytes.subspan(skipped);
        if (bytes.empty()) return;
        parts[count++] = {.iov_base = const_cast<std::byte*>(bytes.data()), .iov_len = bytes.size()};
    }
};

/// Bytes sent; 0 when the socket is full; -errno.
ssize_t Outbox::send_unlocked(Gather& gather, int flags) {
    msghdr message{};
    message.msg_iov = gather.parts.data();
    message.msg_iovlen = gather.count;
    sending_ = true;
    mutex_.unlock();
    ssize_t sent = 0;
    do {
        sent = ::sendmsg(socket_.fd(), &message, MSG_DONTWAIT | MSG_NOSIGNAL | flags);
    } while (sent < 0 && errno == EINTR);
    const int status = sent < 0 ? errno : 0;
    mutex_.lock();
    sending_ = false;
    if (waiting_ > 0) sent_.notify_all();
    close_if_unused();  // close() may have left it to us
    if (status == 0) return sent;
    return status == EAGAIN || status == EWOULDBLOCK ? 0 : -status;
}

void Outbox::count(const Frame& frame) noexcept {
    frames_.fetch_add(1, std::memory_order_relaxed);
    bytes_.fetch_add(frame.size(), std::memory_order_relaxed);
}

void Outbox::uncount(const Frame& frame) noexcept {
    frames_.fetch_sub(1, std::memory_order_relaxed);
    bytes_.fetch_sub(frame.size(), std::memory_order_relaxed);
}

Outbox::Next Outbox::push(const FrameHeader& header, Bytes body) {
    Lock lock(mutex_);
    if (closed_) return Next::kNothing;
    queue_.push_back({.header = encode_header(header), .body = std::move(body), .call = header.call});
    count(queue_.back());
    return must_wait() ? Next::kNothing : send_queued();
}

Outbox::Next Outbox::push_borrowed(const FrameHeader& header, std::span<const std::byte> body) {
    Lock lock(mutex_);
    if (closed_) return Next::kNothing;
    if (must_wait() || !queue_.empty()) {
        queue_.push_back({.header = encode_header(header), .body = Bytes(body.begin(), body.end()), .call = header.call});
        count(queue_.back());
        return must_wait() ? Next::kNothing : send_queued();
    }
    const HeaderBytes header_bytes = encode_header(header);
    Gather gather;
    gather.add(header_bytes, body, 0);
    const ssize_t sent = send_unlocked(gather);
    if (closed_) return Next::kNothing;
    if (sent < 0) return give_up(static_cast<int>(-sent));
    if (static_cast<size_t>(sent) < kHeaderBytes + body.size() + padding_after(body.size())) {
        queue_.push_front(
            {.header = header_bytes, .body = Bytes(body.begin(), body.end()), .call = header.call, .sent = static_cast<size_t>(sent)});
        count(queue_.front());
    }
    return corked_ ? Next::kNothing : send_queued();
}

Outbox::Next Outbox::push_now(const FrameHeader& header, Bytes body, bool gather) {
    Lock lock(mutex_);
    if (closed_) return Next::kNothing;
    queue_.push_back({.header = encode_header(header), .body = std::move(body), .call = header.call});
    count(queue_.back());
    // A system call that is under way does not have our frame with it. It does not block, so this is short.
    ++waiting_;
    while (sending_) sent_.wait(mutex_);
    --waiting_;
    return closed_ || awaiting_ ? Next::kNothing : send_queued(/*despite_cork=*/true, gather ? MSG_MORE : 0);
}

Outbox::Next Outbox::flush() {
    Lock lock(mutex_);
    awaiting_ = false;
    return closed_ || must_wait() ? Next::kNothing : send_queued();
}

void Outbox::cork() {
    Lock lock(mutex_);
    corked_ = true;
}

Outbox::Next Outbox::uncork() {
    Lock lock(mutex_);
    corked_ = false;
    return closed_ || must_wait() ? Next::kNothing : send_queued();
}

Outbox::Next Outbox::send_queued(bool despite_cork, int flags) {
    for (int round = 0; !queue_.empty(); ++round) {
        // Who must have its frame with the kernel (despite_cork) stops only where the kernel does.
        if (round == kRoundsMax && !despite_cork) {
            awaiting_ = true;
            return Next::kAwaitWritable;
        }
        Gather gather;
        const size_t frames = std::min(queue_.size(), kGatherFrames);
        for (size_t i = 0; i < frames; ++i) gather.add(queue_[i].header, queue_[i].body, queue_[i].sent);
        const ssize_t sent = send_unlocked(gather, flags);
        if (closed_) return Next::kNothing;
        if (sent < 0) return give_up(static_cast<int>(-sent));
        if (sent == 0) {
            if (blocked_since_ == Time::max()) blocked_since_ = Clock::now();
            awaiting_ = true;
            return Next::kAwaitWritable;
        }
        blocked_since_ = Time::max();
        drop_sent(static_cast<size_t>(sent));
        if (corked_ && !despite_cork) return Next::kNothing;
    }
    return Next::kNothing;
}

void Outbox::drop_sent(size_t bytes) {
    while (bytes > 0) {
        Frame& first = queue_.front();
        const size_t taken = std::min(bytes, first.size() - first.sent);
        first.sent += taken;
        bytes -= taken;
        if (first.sent < first.size()) return;
        uncount(first);
        queue_.pop_front();
    }
}

Outbox::Next Outbox::give_up(int error) {
    failure_ = Error(Code::kUnavailable, "cannot send", error);
    awaiting_ = true;  // nobody tries again; what is queued goes with the connection
    return Next::kBroken;
}

bool Outbox::discard(uint64_t call) {
    Lock lock(mutex_);
    if (sending_) return false;
    const auto found = std::find_if(queue_.begin(), queue_.end(),
                                    [&](const Frame& frame) { return frame.call == call && frame.sent == 0; });
    if (found == queue_.end()) return false;
    uncount(*found);
    queue_.erase(found);
    return true;
}

void Outbox::have_it_reset() {
    // The kernel then throws away what it has and resets the connection when the last descriptor goes.
    const linger none{.l_onoff = 1, .l_linger = 0};
    if (socket_) ::setsockopt(socket_.fd(), SOL_SOCKET, SO_LINGER, &none, sizeof none);
}

void Outbox::reset_when_closed() {
    Lock lock(mutex_);
    have_it_reset();
}

void Outbox::close() {
    Lock lock(mutex_);
    closed_ = true;
    if (!queue_.empty()) have_it_reset();
    if (held_) ::shutdown(socket_.fd(), SHUT_RDWR);
    close_if_unused();
}

void Outbox::close_if_unused() {
    if (closed_ && !sending_ && !held_) socket_.reset();
}

bool Outbox::hold() {
    Lock lock(mutex_);
    if (closed_) return false;
    held_ = true;
    return true;
}

void Outbox::release() {
    Lock lock(mutex_);
    held_ = false;
    close_if_unused();
}

Time Outbox::blocked_since() const {
    Lock lock(mutex_);
    return blocked_since_;
}

Error Outbox::failure() const {
    Lock lock(mutex_);
    return failure_;
}

}  // namespace mooncake::rpc
