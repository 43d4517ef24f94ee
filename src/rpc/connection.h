// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "base/completion.h"
#include "base/error.h"
#include "base/thread_annotations.h"
#include "base/time.h"
#include "net/socket.h"
#include "rpc/frame.h"
#include "rpc/io_loop.h"
#include "rpc/look_ahead.h"
#include "rpc/outbox.h"
#include "rpc/read_switch.h"

namespace mooncake::rpc {

/// One TCP connection that carries frames; what both ends have in common. Lives on one IoLoop and is called there, except where
/// it says otherwise. Shared between the loop, its owner and whoever still wants to send.
class Connection : public IoHandler, public std::enable_shared_from_this<Connection>, protected FrameSink {
public:
    /// kShared: callers may read, too, see read_here().
    enum class Reading : uint8_t { kLoop, kShared };
    Connection(std::shared_ptr<IoLoop> loop, net::Socket socket, uint64_t body_bytes_max, Reading reading = Reading::kLoop);

    /// Starts reading.
    Result<> open();
    /// Ends it; on_closed() is called, once.
    void close(const Error& why);
    bool closed() const noexcept { return closed_; }

    /// From any thread. Frames sent after the connection broke vanish.
    void send(const FrameHeader& header, Bytes body);
    void send_borrowed(const FrameHeader& header, std::span<const std::byte> body);
    /// From any thread: as send(), and does not return before the frame is with the kernel, unless the peer takes no more. `gather`: the kernel
    /// may keep it for a moment, so that it leaves with what follows.
    void send_now(const FrameHeader& header, Bytes body, bool gather = false);
    /// From any thread but the loop's, if reading is shared: nobody reads until read_here() of this thread, which must follow. The answer
    /// to a request that is sent afterwards wakes no other thread. False: somebody else reads.
    bool begin_here();
    /// Receives on this thread until `done` or the deadline, while the loop's sleeps on; who waits for an answer gets it without another thread in
    /// between. Returns early when the connection ended. The sink gets the frames of everybody; no closing happens on this thread.
    void read_here(const Completion& done, Deadline deadline, FrameSink& sink);
    /// Has a host that vanished noticed soon.
    void watch_closely();
    /// Nobody is in a hurry for what comes next: it is left in the kernel's buffer until this much later, or until there is much of it. Counts
    /// once, from the frame that is just being handled.
    void linger(Duration time) noexcept { linger_ = time; }
    /// From any thread: takes back a frame that has not left yet.
    bool take_back(uint64_t call) { return outbox_.discard(call); }

    /// The peer has begun a frame, or does not take ours, and has not moved since `before`.
    bool stalled(Time before) const;
    /// Some frame is under way, in either direction.
    bool busy() const { return reader_.partial() || outbox_.frames() != 0; }

protected:
    ~Connection() override = default;

    virtual void on_closed(const Error& why) = 0;
    /// False: stop reading until resume().
    virtual bool wants_more() { return true; }
    /// Some frames left.
    virtual void on_sent() {}
    /// We cannot send any more: whether what the peer sent before its end is worth reading.
    virtual bool reads_last_words() { return false; }
    /// The socket takes no more for now.
    virtual void on_blocked() {}

    IoLoop& loop() noexcept { return *loop_; }
    FrameReader& reader() noexcept { return reader_; }
    const Outbox& outbox() const noexcept { return outbox_; }
    void reset_when_closed() { outbox_.reset_when_closed(); }
    void resume();

    void on_readable() final;
    void on_writable() final;

private:
    // kAll: probably, kDry: certainly nothing more. kEnd: the stream is at its end, kBad: it makes no sense.
    enum class Received : uint8_t { kMore, kAll, kDry, kEnd, kBad, kClosed };
    enum class Turn : uint8_t { kFree, kLoop, kCaller };

    Received receive(std::span<std::byte> scratch, FrameSink& sink, Error& why);
    Received receive_on_loop();
    Received receive_here(const Completion& done, Deadline deadline, FrameSink& sink, Error& why);
    bool take_turn();
    void end_turn();
    void wait_for_room();
    void follow(Outbox::Next next);
    void close_broken();
    void read_or_pause();
    void take_what_came();
    void settle_lingering();
    void send_gathered_soon();

    const std::shared_ptr<IoLoop> loop_;
    const int fd_;
    Outbox outbox_;
    FrameReader reader_;
    const Reading shared_reading_;
    std::unique_ptr<IoLoop::Watch> watch_;                // where reading is shared: only while we wait for room
    std::shared_ptr<ReadSwitch> switch_;                  // where reading is shared; constant once open
    std::unique_ptr<IoLoop::Timer> linger_timer_;         // made when first needed
    Duration linger_{0};                                  // asked for
    std::unique_ptr<IoLoop::Timer> gather_timer_;         // made when first needed
    std::atomic<bool> gathering_{false};                  // it is, or is about to be, set
    std::atomic<Time> partial_since_{Time::max()};        // when the last bytes of a partial frame came
    Mutex turn_mutex_;                                    // taken before the outbox's
    Turn turn_ MC_GUARDED_BY(turn_mutex_) = Turn::kFree;  // who uses reader_ and what follows
    bool lingering_ = false;                              // the kernel tells us only of much
    std::unique_ptr<std::byte[]> scratch_;                // of callers that read
    LookAhead look_ahead_;
    bool closed_ = false;
    bool reading_ = false;
    bool broken_ = false;  // cannot send any more
};

}  // namespace mooncake::rpc
