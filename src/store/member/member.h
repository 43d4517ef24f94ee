// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/thread_annotations.h"
#include "base/time.h"
#include "store/member/event_port.h"
#include "store/member/holdings.h"
#include "store/member/master_link.h"
#include "store/member/membership.h"
#include "store/protocol/behind_clients.h"

namespace mooncake::store {

/// Everything a membership does, without its thread: beat() is one turn of it. Thread-safe, but beat() is called by one thread at a time,
/// and nothing after leave().
class Member {
public:
    struct Setup {
        MasterApi& master;
        ClientId client;
        MembershipListener& listener;
        Holdings& holdings;
        MembershipOptions options;
        std::function<Time()> clock = Clock::now;
        std::function<BootTime()> lease_clock = BootClock::now;  // by which the master counts our silence
        std::function<void()> wake = [] {};                      // beat() should be called now; from any thread, must not block
    };
    explicit Member(Setup setup);

    /// Asks the master whether it knows us and does what follows from the answer. Returns when to do it again.
    Time beat(Deadline deadline = Deadline::never());
    /// Why the last beat() did not make us a member.
    Result<> standing() const;

    Result<StoreCode> mount(const SegmentSpec& segment, Deadline deadline);
    Result<StoreCode> unmount(const SegmentId& segment, Duration grace, Deadline deadline);

    /// Lets nobody wait any more, and ends the event stream.
    void begin_leaving();
    /// Tells the master, if it ever knew us. No beat() may be running.
    void say_goodbye(Deadline deadline);
    /// Nothing is called back any more.
    void leave();

    uint64_t epoch() const noexcept { return epoch_.load(std::memory_order_acquire); }
    bool answering() const {
        Lock lock(mutex_);
        return answering_;
    }

private:
    enum class Stage : uint8_t { kOutside, kInside, kLeft };

    Time on_silence(const Error& why);
    /// `unheard`: there was no event stream any more when it was asked.
    Time on_answer(const HeartbeatReply& reply, Time asked, bool unheard);
    Result<HeartbeatReply> heartbeat();
    Result<> join(uint64_t epoch);
    /// Tells what our segments hold; returns them as they are to be opened for new writes.
    Result<std::vector<HeldSegment>> report_all(uint64_t epoch);
    Result<> check_master(uint64_t epoch);
    Result<> await_stream(uint64_t epoch);
    /// Makes us known to the master, and hears what of its events we have missed; false: nobody knows that any more.
    Result<bool> introduce(uint64_t epoch);
    Result<> hear_missed(uint64_t epoch, std::span<const std::vector<std::byte>> updates);
    Result<> send_part(uint64_t epoch, const HeldSegment& part);
    /// Whether the one who has our disk may just not have been given up yet.
    bool may_claim();
    void lose_master();
    void settle_unmounts();
    Result<> await_standing(Deadline deadline);
    Result<> await_next_join(uint64_t joins, Deadline deadline);
    bool wait_for_change(Deadline deadline, const std::function<bool()>& changed);

    void follow();
    void on_update(const EventView& update);
    void note_heard(const EventView& update);
    /// What we acknowledged before may be lost with a connection, and then neither of us would ever say anything more.
    void acknowledge_again();
    void note_history(const EventView& update);
    /// The master we follow, or did, goes on without us.
    void note_missed();
    void on_stream_end(const Error& why);
    /// To be remembered. `following`: an event stream begins; else what is known of its end still holds.
    void tell_standing(bool following);
    /// This thread runs; if it should have run long ago, nothing here did meanwhile.
    void note_awake();
    bool slept() const;

    const Setup setup_;
    std::atomic<uint64_t> epoch_{0};
    std::atomic<bool> obeys_{false};       // the event stream is that of a master we have not lost
    std::atomic<BootTime> answered_at_{};  // when the last heartbeat that was answered had been sent
    std::atomic<Duration> client_ttl_{10s};
    std::atomic<BootTime> awake_at_;           // when beat() was last seen at work
    std::atomic<BootTime> woke_until_{};       // what an event stream says before that may be the end of it while we slept
    std::atomic<uint64_t> followed_epoch_{0};  // whose event stream we followed last; written by beat()
    std::atomic<uint64_t> missed_epoch_{0};    // the first that went on without us, if no complete event stream has come since
    std::atomic<uint64_t> last_update_{0};     // of the event stream we follow, heard; 0: none yet
    std::atomic<uint64_t> heard_update_{0};    // of the life we followed last, at all
    // The last one before which we have missed none, and whose it was; written while an event stream is handled, or by beat() while there is none.
    std::atomic<uint64_t> whole_update_{0}, whole_epoch_{0};
    std::atomic<bool> whole_{false};      // the event stream we follow has been complete
    std::atomic<bool> restarted_{false};  // nothing but what was remembered is known, since no complete event stream has come yet
    std::atomic<bool> forgotten_{false};  // nobody knows what we have missed, and no complete event stream has come since

    /// From then on the master may have given us up for being silent.
    BootTime lost_at() const { return answered_at_.load(std::memory_order_relaxed) + client_ttl_.load(std::memory_order_relaxed); }
    bool heard_of() const { return setup_.lease_clock() < lost_at(); }
    Deadline within(Duration most) const { return Deadline::after(most).earlier(limit_); }

    // Only beat().
    Deadline limit_ = Deadline::never();                     // of this one
    uint64_t joined_epoch_ = 0;                              // whose event stream we follow; 0: none
    bool told_lost_ = true;                                  // the listener knows of no master
    Time followed_at_{};                                     // when the last event stream was asked for
    Time claimed_since_{};                                   // since when another has our disk
    uint64_t remembered_epoch_ = 0, remembered_update_ = 0;  // of who was here before us
    bool exact_ = false;                                     // what our memory holds is known exactly from it, if the master tells the rest

    mutable Mutex mutex_;
    std::condition_variable_any changed_;
    Stage stage_ MC_GUARDED_BY(mutex_) = Stage::kOutside;
    bool answering_ MC_GUARDED_BY(mutex_) = false;
    Error silence_ MC_GUARDED_BY(mutex_);  // while it does not answer
    bool reporting_ MC_GUARDED_BY(mutex_) = false;
    uint64_t reports_ MC_GUARDED_BY(mutex_) = 0, joins_ MC_GUARDED_BY(mutex_) = 0;
    std::set<SegmentId> to_unmount_ MC_GUARDED_BY(mutex_);  // the master may have them, we do not
    BehindClients behind_ MC_GUARDED_BY(mutex_);            // as the master told whom we followed last
    HistoryPoint heard_ MC_GUARDED_BY(mutex_);              // until then we have heard everything

    EventPort stream_;
};

}  // namespace mooncake::store
