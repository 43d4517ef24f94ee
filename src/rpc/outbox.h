// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>

#include "base/error.h"
#include "base/thread_annotations.h"
#include "base/time.h"
#include "net/socket.h"
#include "rpc/frame.h"

namespace mooncake::rpc {

/// The outgoing frames of one connection, and its socket. Whoever adds a frame while nobody sends becomes the sender and writes
/// everything queued, many frames in one system call; the others only queue. When the socket takes no more, or the sender has
/// done enough for others, the rest is left to the connection's I/O thread. Thread-safe.
class Outbox {
public:
    explicit Outbox(net::Socket socket) : socket_(std::move(socket)) {}

    enum class Next : uint8_t {
        kNothing,        // sent, or somebody else sends it
        kAwaitWritable,  // the caller sees to it that flush() is called once the socket is writable
        kBroken,         // see failure(); the caller sees to it that the connection is closed
    };
    [[nodiscard]] Next push(const FrameHeader& header, Bytes body);
    /// As push(), and copies the body only if it cannot be sent at once.
    [[nodiscard]] Next push_borrowed(const FrameHeader& header, std::span<const std::byte> body);
    /// As push(), but does not leave it to others: returns when the frame has been handed to the kernel, unless the socket is full or broken.
    /// `gather`: the kernel may keep it to send it with what follows.
    [[nodiscard]] Next push_now(const FrameHeader& header, Bytes body, bool gather = false);
    /// The socket became writable.
    [[nodiscard]] Next flush();

    /// Between the two, frames are only queued, so that a batch of them leaves together.
    void cork();
    [[nodiscard]] Next uncork();

    /// Takes back the frame of a call; false when it was, or is just being, sent.
    bool discard(uint64_t call);
    /// Nothing more is sent; the socket is closed as soon as no thread uses it. If frames are left the connection is broken off: its end must not look in
    /// order to the peer.
    void close();
    /// From now on the connection does not end in order, however it comes to be closed, even by the end of this process.
    void reset_when_closed();
    /// Keeps the socket from being closed until release(), so that the caller can read it. If close() comes meanwhile it is shut down, which wakes
    /// who waits for bytes. False: it is closed. By one at a time.
    bool hold();
    void release();

    size_t frames() const noexcept { return frames_.load(std::memory_order_relaxed); }
    uint64_t bytes() const noexcept { return bytes_.load(std::memory_order_relaxed); }
    /// When the socket took no more; Time::max() while it takes everything.
    Time blocked_since() const;
    Error failure() const;

private:
    struct Frame {
        HeaderBytes header;
        Bytes body;
        uint64_t call = 0;
        size_t sent = 0;
        size_t size() const noexcept { return kHeaderBytes + body.size() + padding_after(body.size()); }
    };

    struct Gather;

    void close_if_unused() MC_REQUIRES(mutex_);
    void have_it_reset() MC_REQUIRES(mutex_);
    bool must_wait() const MC_REQUIRES(mutex_) { return sending_ || corked_ || awaiting_; }
    void count(const Frame& frame) noexcept;
    void uncount(const Frame& frame) noexcept;
    ssize_t send_unlocked(Gather& gather, int flags = 0) MC_REQUIRES(mutex_);
    Next send_queued(bool despite_cork = false, int flags = 0) MC_REQUIRES(mutex_);
    void drop_sent(size_t bytes) MC_REQUIRES(mutex_);
    Next give_up(int error) MC_REQUIRES(mutex_);

    mutable Mutex mutex_;
    std::deque<Frame> queue_ MC_GUARDED_BY(mutex_);
    std::condition_variable_any sent_;  // nobody sends any more; only told while somebody waits
    int waiting_ MC_GUARDED_BY(mutex_) = 0;
    bool sending_ MC_GUARDED_BY(mutex_) = false;  // a system call reads the first of queue_ without the mutex: only push_back()
    bool corked_ MC_GUARDED_BY(mutex_) = false;
    bool awaiting_ MC_GUARDED_BY(mutex_) = false;  // for writable
    bool closed_ MC_GUARDED_BY(mutex_) = false;
    bool held_ MC_GUARDED_BY(mutex_) = false;
    Time blocked_since_ MC_GUARDED_BY(mutex_) = Time::max();
    Error failure_ MC_GUARDED_BY(mutex_);
    net::Socket socket_;  // closed under mutex_, when closed_ and neither sending_ nor held_
    std::atomic<size_t> frames_{0};
    std::atomic<uint64_t> bytes_{0};
};

}  // namespace mooncake::rpc
