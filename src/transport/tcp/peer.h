// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "base/error_copy.h"
#include "base/thread_annotations.h"
#include "net/socket.h"
#include "transport/tcp/farewell.h"
#include "transport/tcp/fences.h"
#include "transport/tcp/handshake.h"
#include "transport/tcp/io_thread.h"
#include "transport/tcp/lane.h"
#include "transport/tcp/work_queue.h"
#include "transport/transport.h"

namespace mooncake::tcp {

/// What all peers of one transport share. Outlives them.
struct Initiator {
    Incarnation incarnation;
    const EngineOptions& options;
    std::vector<std::unique_ptr<IoThread>>& io_threads;
    const net::Interrupt* closing = nullptr;  // ends connects under way
    int lanes = 1;                            // of one peer
    int drivers_max = 1;                      // waiting threads that work on one peer at the same time
    std::atomic<uint64_t> next_number{1};     // of sessions, for targets that want them numbered
    std::atomic<uint32_t> next_io_thread{0};
    Fences fences;

    /// Without session.
    Hello hello(const Target& target) const;
};

/// One life of a connection to a target: a queue of slices and the lanes that pull from it.
///
/// Who works: a lane is moved on by whoever holds its mutex, for one step at a time. Threads inside wait() ("drivers") do that for
/// all lanes, spinning and then in poll(). While there is no driver, lanes with something outstanding are armed in their I/O
/// thread. The rule that keeps work from being forgotten: who pushed onto the queue then steps at least one lane, and who
/// leaves a lane or stops driving settles it (see settle()).
///
/// A lane that stands in the middle of a message, since memory of its payload turned out not to be there, is replaced together with the others as
/// by cancel(), by a thread that lives for that: it costs nobody but the one who named that memory.
class TcpPeer final : public Peer {
public:
    static Result<std::unique_ptr<TcpPeer>> connect(Initiator& initiator, Target target, Deadline deadline);
    ~TcpPeer() override;

    void submit(Direction direction, std::span<const Slice> slices, Submit how) override;
    bool wait(Completion& completion, Deadline deadline) override;
    /// What is not yet sent is taken back, and what is read goes nowhere from now on. Writes that are under way are given a moment to end by
    /// themselves, which on a healthy connection they do. Otherwise the lanes are replaced: the target ends the old ones, and whatever
    /// others had under way goes on over the new ones. A target that does not even answer that costs everybody the connection.
    void withdraw(const Completion& whole, const Error& reason) override;
    Stopped cancel(Completion& completion, const Error& reason, Deadline deadline) override;
    void close(const Error& reason) override;
    bool usable() const noexcept override {
        return !broken_.load(std::memory_order_acquire) && !member_.outdated.load(std::memory_order_acquire);
    }
    void poke() override;

private:
    struct alignas(64) Slot final : IoHandler {
        Slot(TcpPeer& owner, IoThread& io_thread, net::Socket socket, bool checked)
            : peer(owner), io(io_thread), lane(std::move(socket), checked) {}
        void on_ready(uint32_t events) override { peer.on_lane_ready(*this, events); }
        void on_exception() noexcept override { peer.break_off({.error = out_of_memory()}); }

        TcpPeer& peer;
        IoThread& io;
        IoThread::Token token = 0;
        int fd = -1;                  // constant once added to `io`
        std::atomic<short> wants{0};  // as Lane::wants() when the mutex was last released
        Mutex mutex;
        Lane lane MC_GUARDED_BY(mutex);
        uint32_t armed MC_GUARDED_BY(mutex) = 0;  // epoll events asked for; 0 after one was delivered
    };
    /// Ends the poll() of the driver that sleeps. Outlives the peer in the hands of a thread that finishes completions, for the
    /// owner of the last one may then destroy the peer.
    struct Bell {
        net::Socket event;                  // eventfd
        std::atomic<bool> sleeping{false};  // one driver is in poll(), or about to be
        void ring() const noexcept;
    };
    enum class Driven : uint8_t { kDone, kTimedOut, kCrowded };
    enum class Attention : uint8_t { kSomebody, kMe };  // who looks after the lane when we leave it; kMe: we promise to

    TcpPeer(Initiator& initiator, Target target);
    Result<> open(const net::Patience& patience);
    Result<std::vector<Greeted>> open_lanes(const SessionId& session, const net::Patience& patience);
    Result<> end_sessions(std::span<const SessionId> sessions, const net::Patience& patience);

    size_t step(Slot& slot, size_t budget, Attention attention) MC_THREAD_ATTRIBUTE(release_capability(slot.mutex));
    void settle(Slot& slot, Attention attention) MC_REQUIRES(slot.mutex);
    void on_lane_ready(Slot& slot, uint32_t events);

    bool drive();
    bool drive_or_sleep(Completion& completion, Deadline deadline);
    Driven drive_until(const Completion& completion, Deadline deadline);
    bool sleep(const Completion& completion, Deadline deadline);
    bool start_driving() noexcept;
    void stop_driving();

    /// Also where there is no memory.
    void break_off(const Verdict& verdict) noexcept;
    void fail_all(const Verdict& verdict) noexcept;
    Verdict verdict_on(Error error) const;
    void take_back(Completion& completion, const Error& reason);
    void replace_lanes(const Completion& completion, const Error& reason, Deadline deadline) MC_REQUIRES(fence_mutex_);
    void mend_soon() noexcept;
    void mend_lanes();
    const Completion* culprit() const;
    bool suspend_lanes(const Completion& completion, const Error& reason, FinishedList& finished);
    bool resume_lanes(const SessionId& session, std::vector<Greeted> lanes);
    bool in_doubt() const;
    bool fence(Deadline deadline);
    Hello last_word() const;
    void begin_farewell();
    Error failure() const;

    Initiator& initiator_;
    const Target target_;
    const uint32_t birth_ = fork_generation();
    const std::shared_ptr<Bell> bell_ = std::make_shared<Bell>();
    SpinPolicy spin_{kWaitSpin};

    WorkQueue queue_;
    std::vector<std::unique_ptr<Slot>> slots_;  // constant after open()
    net::SocketAddress address_;                // of the target; constant after open(), as is
    Duration patience_{};                       // with its last word
    // Written by everybody who waits, and kept away from what everybody reads.
    alignas(64) std::atomic<int> drivers_{0};
    std::atomic<int> waiters_{0};  // threads inside wait(); only a hint
    alignas(64) std::atomic<bool> broken_{false};
    std::atomic<bool> in_doubt_{false};  // broke while writes were under way: the target may still apply them
    Fences::Member member_;

    Mutex mend_mutex_;
    bool mending_ MC_GUARDED_BY(mend_mutex_) = false;     // there is a thread that does
    bool mend_again_ MC_GUARDED_BY(mend_mutex_) = false;  // and it shall look once more
    std::jthread mender_ MC_GUARDED_BY(mend_mutex_);

    Mutex fence_mutex_;                                    // one at a time asks the target to end something; taken first
    bool unanswered_ MC_GUARDED_BY(fence_mutex_) = false;  // it did not do so when it was asked: once is enough

    mutable Mutex failure_mutex_;
    SessionId session_ MC_GUARDED_BY(failure_mutex_);
    uint64_t fence_number_ MC_GUARDED_BY(failure_mutex_) = 0;  // set when it breaks, for targets that want numbers
    Error failure_ MC_GUARDED_BY(failure_mutex_);
    std::optional<Farewell> farewell_ MC_GUARDED_BY(failure_mutex_);
};

}  // namespace mooncake::tcp
