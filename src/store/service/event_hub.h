// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/thread_annotations.h"
#include "base/time.h"
#include "rpc/rpc.h"
#include "store/master/observer.h"
#include "store/master/range_events.h"
#include "store/protocol/behind_clients.h"
#include "store/protocol/messages_events.h"
#include "store/service/locked_master.h"
#include "store/service/unheard_events.h"

namespace mooncake::store {

struct EventHubOptions {
    uint64_t life = 1;  // of the master among those of its pool, numbered by when they began
    Duration acknowledge_timeout = 50ms;
    size_t update_bytes_max = 1 << 20;          // about; more becomes several updates
    size_t changed_keys_max = 4096;             // in one update, and update_bytes_max; more become "all"
    size_t report_ranges = 512;                 // of a first report, under one hold of the lock
    int report_window = 8;                      // parts of a first report that are not acknowledged yet
    size_t unacknowledged_bytes_max = 1 << 20;  // of changed keys; who does not acknowledge more is told "all" when it has caught up
    size_t lagging_bytes_max = 64 << 10;        // the same for those who have not made it within acknowledge_timeout
    Duration unsent_timeout = 2s;               // events about its memory that a follower does not take for so long: it is cut off
    Duration unsent_interval = 5ms;             // how often such events are looked after
    size_t ask_bytes = 4 << 20;                 // of such events that a follower is not asked about, whether it has heard them
    size_t unheard_bytes_max = 16 << 20;        // of them, told again to one who was away
    size_t gone_bytes_max = 64 << 20;           // for all who were given up; and for so long:
    Duration gone_time_max = 10min;
    std::function<Time()> clock = Clock::now;
};

/// Tells every following client what it must know (docs/store.md, "The event stream"), in order, and remembers who has acknowledged what. What
/// happens is noted under the master's lock and sent by flush() without it; one thread sends for all. A client that reads too slowly is
/// cut off. Thread-safe; its lock is taken inside the master's, never the other way round.
///
/// Of changed keys only those clients are told that may remember any: whose process has asked for a value within the time that the longest
/// lease lasts. What waits for one client is bounded: if it does not acknowledge, it hears nothing more of changes until it has
/// caught up, and then that all may have changed.
///
/// Events about ranges must outlive the master once the operation that caused them is answered: the node reports from them. With the kernel they
/// do; while a follower's connection takes no more they do not, and the answers wait. Where that takes too long the connection is broken off first,
/// so that the node knows that it has not heard everything. It may find out too late, or not at all where the network is to blame; so everybody else is told that
/// it is behind, and tells the next master, which then does not take its word for values of an earlier life. For the same reason an order to copy
/// waits until the nodes it writes to have heard of their ranges.
///
/// What the kernel has may still be lost with the connection, and its node may be given up before it is back. So events about ranges are kept until
/// the node has heard them, and told again when it reports to this master. Who gives up a copy for another waits until its node has heard of that.
class EventHub final : public StateObserver, public EventSink {
public:
    explicit EventHub(EventHubOptions options = {}) : options_(std::move(options)), life_(options_.life) {}

    // ---- with the master's lock

    void range_planned(const MasterState& state, SegmentNumber segment, WriteId write) override;
    void range_planned_for_copy(const MasterState& state, SegmentNumber segment, CopyId copy) override;
    void range_filled(const MasterState& state, SegmentNumber segment, uint64_t generation, uint64_t checksum) override;
    void range_dropped(const MasterState& state, SegmentNumber segment, uint64_t generation, Duration quarantine, bool rests) override;
    void value_outdated(const MasterState& state, ObjectId object) override;
    void tombstone_left(const MasterState& state) override;
    void copy_ordered(const MasterState& state, CopyId copy) override;
    bool tells_of_replaced() const noexcept override { return true; }
    void catch_up(Transaction& transaction, Time now) override;
    void segment_removed(const MasterState& state, SegmentNumber segment) override;

    /// Begins the event stream of a member; an earlier one of the same client ends.
    void follow(const MasterState& state, ClientNumber client, std::unique_ptr<rpc::Responder> responder);
    /// Members whose event stream broke and who do not follow yet again, each told once.
    std::vector<ClientId> take_lost(const MasterState& state);
    /// Ends the event streams of clients that are no members any more.
    void drop_strangers(const MasterState& state);
    /// Somebody of that process is about to learn where values are, or that they are there, and may remember it.
    void asked(const MasterState& state, Incarnation process, Time now);
    /// A member joins: it has heard everything until then, and of earlier masters that these are behind. Returns members of whom that was
    /// not known before, and who have not heard so much.
    std::vector<ClientId> believe(const ClientId& member, const HistoryPoint& told, std::span<const Behind> behind);
    /// Whether an earlier master went on without this member: what it tells of that one's values may be outdated.
    bool distrusts(const ClientId& member) const;
    /// Tells the client the next part of what its segments hold, if wants_report().
    void report(const MasterState& state, const ClientId& client, Time now);
    /// What a member that reports has missed of this life, if it has heard everything up to that update (0: none).
    UnheardEvents::Missed missed(const ClientId& client, uint64_t heard, uint64_t remembered = 0);
    /// What operations have caused so far.
    struct Position {
        uint64_t events = 0;   // about anything
        uint64_t changes = 0;  // values that became outdated
        uint64_t relied = 0;   // how often something relied on what was said of clients that are behind
        uint64_t word = 0;     // the last event that said so
    };
    Position position() const noexcept {
        return {.events = observed_.load(std::memory_order_acquire),
                .changes = changes_.load(std::memory_order_acquire),
                .relied = relied_.load(std::memory_order_acquire),
                .word = word_.load(std::memory_order_acquire)};
    }
    /// What one operation, or several, caused: between two positions.
    struct Caused {
        uint64_t first = 0, last = 0;  // event; 0: none
        uint64_t change = 0;           // the last one; 0: none
        uint64_t word = 0;             // everybody must have heard who was behind by this event; 0: does not matter
        /// Of one follower: every event up to this one.
        struct Relied {
            ClientId client;
            uint64_t last = 0;
        };
        std::vector<Relied> relied{};   // what others caused and an answer relies on: the kernel must have it
        std::vector<Relied> doubted{};  // that does not do: the follower itself must have heard it

        void add(const Position& before, const Position& after) {
            if (after.changes != before.changes) change = after.changes;
            if (after.relied != before.relied) word = after.word;
            if (after.events == before.events) return;
            if (first == 0) first = before.events + 1;
            last = after.events;
        }
        bool nothing() const noexcept { return first == 0 && change == 0 && word == 0 && relied.empty() && doubted.empty(); }
    };
    /// Adds that an answer speaks of this object, or of a write to it, which others may have brought about: what the owners of its ranges
    /// were told so far must be with the kernel first. After flush(); nothing to add unless may_rely().
    void rely_on(const MasterState& state, std::string_view tenant, std::string_view key, Caused& caused);
    /// Asks the owner of a segment whether it has heard what was noted so far, and adds that it must have.
    void doubt(const MasterState& state, SegmentNumber segment, Caused& caused);

    // ---- without

    /// Returns when everything that was noted before is with the kernel, or its reader is slow or cut off.
    void flush() override;
    bool wants_report(const ClientId& client) const;
    void acknowledge(const ClientId& client, uint64_t sequence);
    /// Whether there is any event about a range that the kernel has not taken. After flush().
    bool may_rely() const noexcept { return unsent_followers_.load(std::memory_order_acquire) != 0; }
    /// Adds that an answer says that something is not there, which may be a removal's doing, of which nobody knows any more whom it
    /// concerned: all that anybody was told so far. After flush().
    void rely_on_all(Caused& caused) const;
    /// Adds that an answer says that a key is gone: also an older value of it, which its node may not have been told yet. After flush().
    void rely_on_held(Caused& caused) const;
    /// Whether nothing of this is left for which answer_when_told() would wait. After flush().
    bool told(const Caused& caused);
    /// Answers once the events about ranges are with the kernel, or their follower was cut off; and every follower has acknowledged the changes,
    /// for which acknowledge_timeout is waited at most. A follower that did not make it in time is not waited for again until it has
    /// caught up. After flush(). Returns when expire() must be called; Time::max(): answered.
    Time answer_when_told(const Caused& caused, std::unique_ptr<rpc::Responder> responder, rpc::Bytes body, Time now);
    /// The same, but calls `then` instead: now or later, from any thread that uses the hub and maybe with its locks, so it must neither
    /// block nor call back in here.
    Time call_when_told(const Caused& caused, std::function<void()> then, Time now);
    /// Answers those who have waited long enough, cuts off who keeps them waiting; returns when it is to be called again.
    Time expire(Time now);
    /// This master ends. Who is cut off from now on never hears from it what it has missed, and nobody believes it any more: whoever waits for that
    /// is not told that all is well, but that the master ends, and asks the next one.
    void end_soon();
    /// Answers those who need not wait any more, and fails the others; calls are not made any more.
    void answer_all();
    size_t followers() const;
    /// Whether it is held back that a value goes, until the kernel knows what has replaced it.
    bool holds_back() const noexcept { return holds_drops_.load(std::memory_order_acquire); }

private:
    /// Changed keys, for everybody who is told of nothing else at that moment: made into a message once.
    struct Changes {
        EventWriter writer;
        rpc::Bytes encoded;  // by whoever sends; empty: not yet
    };
    /// One update to be.
    struct Item {
        EventWriter writer;
        std::optional<EventUpdate> report;  // instead
        std::shared_ptr<Changes> changes;   // instead
        bool reset = false, complete = false, sealed = false;
        bool ask = false;    // whether it was heard
        HistoryPoint now{};  // with reset
    };
    struct Awaited {
        uint64_t sequence = 0;
        uint64_t change = 0;  // 0: a part of the report
        Time sent{};
        size_t bytes = 0;  // of changed keys
    };
    /// Events about ranges, of one flush, that the kernel has not taken yet.
    struct Unsent {
        uint64_t first = 0, last = 0;  // events; those of others may be between them
        uint64_t first_word = 0;       // about clients that are behind; 0: none
        uint64_t end = 0;              // where they end in all that was ever sent, counted in bytes
        Time since{};
    };
    using UnheardPtr = std::shared_ptr<UnheardEvents>;  // itself under mutex_
    struct Follower {
        ClientId client;
        std::unique_ptr<rpc::Responder> responder;  // used only under push_mutex_, but for abandoned() and unsent_bytes()
        // the rest under mutex_
        std::vector<Item> items;
        UnheardPtr unheard;
        std::deque<Awaited> awaited;
        uint64_t acknowledged = 0;  // change
        size_t unacknowledged_bytes = 0;
        bool lagging = false;
        bool counted = false;  // in acknowledged_
        bool missed = false;   // changes it was not told of, for being too far behind
        Incarnation process;
        std::vector<SegmentNumber> unreported;  // the last one is being told
        RangeCursor cursor;
        OrderCursor orders;
        bool reporting = false;
        int report_outstanding = 0;
        uint64_t first_range = 0, last_range = 0;  // events about ranges among the items; 0: none
        uint64_t first_word = 0;                   // likewise, about clients that are behind
        uint64_t sent_bytes = 0;                   // ever; no more than that
        std::deque<Unsent> unsent;
        bool lends = false;  // may hold values
    };
    using FollowerPtr = std::shared_ptr<Follower>;
    struct Ended {
        FollowerPtr follower;
        Error why;
    };
    struct Outgoing {
        FollowerPtr follower;
        std::vector<Item> items;
        uint64_t first_sequence = 0;
        bool changed = false;  // the last item carries changes
        uint64_t first_range = 0, last_range = 0, first_word = 0, bytes = 0;
    };
    /// An update with events about ranges.
    struct Sent {
        UnheardEvents* unheard = nullptr;
        uint64_t sequence = 0, first = 0;
        size_t bytes = 0;
    };
    struct Waiter {
        Caused caused;
        Time deadline{};  // for acknowledgements of changes
        std::unique_ptr<rpc::Responder> responder{};
        rpc::Bytes body{};
        std::function<void()> then{};  // instead
        bool forsaken = false;         // what it waits for will never be told
    };
    /// What a follower had not been told when it was cut off, and never will be.
    struct Forsaken {
        ClientId client;
        Unsent unsent;
    };
    /// To copy to ranges that were planned by these events.
    struct HeldOrder {
        ClientId client;
        CopyOrder order;
        Caused planned;
    };

    /// That a value goes: a master that is killed must not take along both it and what has replaced it.
    struct HeldDrop {
        ClientId client;
        SegmentNumber segment = 0;
        RangeDropped event;
        uint64_t number = 0;    // of the event
        Caused filled;          // what must be told first
        uint64_t released = 0;  // the event that it was noted as at last, not sent yet; 0: it is held back
    };
    /// What a value has that was replaced, and whose memory need not rest any more.
    struct Replaced {
        SegmentNumber segment = 0;
        uint64_t generation = 0;
    };

    Follower* owner(const MasterState& state, SegmentNumber segment) MC_REQUIRES(mutex_);
    static void rely_on(const Follower* follower, Caused& caused);
    EventWriter& open_item(Follower& follower) MC_REQUIRES(mutex_);
    void noted() MC_REQUIRES(mutex_) { observed_.fetch_add(1, std::memory_order_release); }
    /// Likewise, of an event about a range of this follower's.
    void noted_range(Follower& follower) MC_REQUIRES(mutex_);
    void end(FollowerPtr follower, Error why) MC_REQUIRES(mutex_);
    /// The follower has gone, or must go; its client may come again.
    void lose(Follower& follower) MC_REQUIRES(mutex_);
    /// All others are told, once; who waits for an answer waits for that, too.
    void note_behind(const ClientId& client) MC_REQUIRES(mutex_);
    void tell_behind(const Behind& behind) MC_REQUIRES(mutex_);
    bool outdated(const ClientId& member) const MC_REQUIRES(mutex_);
    void note_caught_up(const ClientId& client) MC_REQUIRES(mutex_);
    /// Sends what was noted so far; false: somebody went, so that there may be more to tell.
    bool push() MC_REQUIRES(push_mutex_);
    /// The same, with all that follows from it.
    void push_all() MC_REQUIRES(push_mutex_);
    /// Holds back that a value goes which another has replaced, of which the kernel does not know yet. False: it does.
    bool hold_drop(Follower& follower, SegmentNumber segment, const RangeDropped& event) MC_REQUIRES(mutex_);
    /// False: nobody is to be told now.
    bool release(HeldDrop& held) MC_REQUIRES(mutex_);
    /// Whether it is held back that something of this client's goes: then it has not been told everything.
    bool holds_drop_of(const ClientId& client) const MC_REQUIRES(mutex_);
    /// For the next catch_up().
    void end_rest(SegmentNumber segment, uint64_t generation) MC_REQUIRES(mutex_);
    /// Notes what was held back and need not be any more; false: nothing.
    bool release_held();
    bool holds_anything() const MC_REQUIRES(mutex_) { return !held_orders_.empty() || !held_drops_.empty(); }
    bool is_told(const Caused& caused) const MC_REQUIRES(mutex_);
    void take_outgoing(std::vector<Outgoing>& outgoing) MC_REQUIRES(mutex_);
    /// Adds what the follower must be told of changes; false: nothing.
    bool add_changes(Follower& follower, const std::shared_ptr<Changes>& changes, Time now) MC_REQUIRES(mutex_);
    /// Nothing of the changes concerns this one: it has acknowledged them as soon as it has acknowledged what it was told before.
    void pass_over(Follower& follower, Time now) MC_REQUIRES(mutex_);
    /// Whether there is more of its first report that it can be told now.
    bool may_report(const Follower& follower) const MC_REQUIRES(mutex_);
    bool may_remember(const Follower& follower, Time now) const MC_REQUIRES(mutex_);
    bool too_far_behind(const Follower& follower, Time now) const;
    /// Whether its acknowledgements are waited for; once it is in followers_.
    void await(Follower& follower) MC_REQUIRES(mutex_);
    void do_not_await(Follower& follower) MC_REQUIRES(mutex_);
    /// The change up to which all who are waited for have acknowledged.
    uint64_t all_acknowledged() const MC_REQUIRES(mutex_) { return acknowledged_.empty() ? UINT64_MAX : acknowledged_.begin()->first; }
    void plan(Follower& follower, const RangePlanned& event) MC_REQUIRES(mutex_);
    bool send(Outgoing& outgoing) MC_REQUIRES(push_mutex_);
    void note_unsent(const Outgoing& outgoing, Time now) MC_REQUIRES(mutex_);
    /// What was sent is kept until it was heard.
    void keep_sent() MC_REQUIRES(push_mutex_, mutex_);
    /// Sent and kept: its memory serves the next one.
    static void reuse(Outgoing& outgoing);
    /// The same of what will never be sent.
    static void keep_unsent(Follower& follower);
    const UnheardPtr& unheard_by(const ClientId& client) MC_REQUIRES(mutex_);
    /// For events about memory whose owner does not follow; null: it has never said that it is there.
    UnheardEvents* unheard_of(const MasterState& state, SegmentNumber segment) MC_REQUIRES(mutex_);
    void forget_gone(const MasterState& state) MC_REQUIRES(mutex_);
    bool is_unheard(const Caused::Relied& doubted) const MC_REQUIRES(mutex_);
    bool is_open(const Caused& caused) const MC_REQUIRES(mutex_);
    bool may_be_open(const Caused& caused) const noexcept {
        return caused.change != 0 || !caused.doubted.empty() || unsent_followers_.load(std::memory_order_acquire) != 0 ||
               holds_drops_.load(std::memory_order_acquire) || ending_.load(std::memory_order_acquire);
    }
    bool is_forsaken(const Caused& caused) const MC_REQUIRES(mutex_);
    /// Forgets what the kernel has taken meanwhile.
    void look_after_unsent() MC_REQUIRES(mutex_);
    void forget_unsent(Follower& follower) MC_REQUIRES(mutex_);
    bool is_unsent(const Caused& caused) const MC_REQUIRES(mutex_);
    static bool concerns(const Unsent& unsent, const Caused& caused);
    bool is_held(const Caused& caused) const MC_REQUIRES(mutex_);
    void cut_off(std::span<const FollowerPtr> slow, const Error& why) MC_REQUIRES(push_mutex_);
    /// Who keeps others waiting for too long.
    std::vector<FollowerPtr> too_slow(Time now) MC_REQUIRES(mutex_);
    Time next_look(Time now) const MC_REQUIRES(mutex_);
    /// Those who need not wait any more.
    std::vector<Waiter> settle() MC_REQUIRES(mutex_);
    static void answer(std::vector<Waiter> waiters);
    Time wait(Waiter waiter, Time now);

    const EventHubOptions options_;
    Mutex push_mutex_;                                              // the one who sends; taken before mutex_
    std::vector<Outgoing> outgoing_ MC_GUARDED_BY(push_mutex_);     // empty but for its memory between two pushes
    std::vector<Sent> sent_ MC_GUARDED_BY(push_mutex_);             // likewise
    std::vector<std::byte> sent_bytes_ MC_GUARDED_BY(push_mutex_);  // of these, one after the other
    mutable Mutex mutex_;
    std::unordered_map<ClientId, FollowerPtr> followers_ MC_GUARDED_BY(mutex_);
    std::unordered_map<SegmentNumber, Follower*> by_segment_ MC_GUARDED_BY(mutex_);  // remembered; null: nobody
    std::unordered_map<ClientId, bool> lost_ MC_GUARDED_BY(mutex_);  // members who do not follow now, and whether that was told
    std::unordered_map<ClientId, UnheardPtr> unheard_ MC_GUARDED_BY(mutex_);
    Time forget_at_ MC_GUARDED_BY(mutex_){};  // who has gone for good: not before
    std::vector<Ended> ended_ MC_GUARDED_BY(mutex_);
    uint64_t life_ MC_GUARDED_BY(mutex_);
    BehindClients behind_ MC_GUARDED_BY(mutex_);         // in this life
    BehindClients behind_before_ MC_GUARDED_BY(mutex_);  // in earlier ones, as members told
    BehindClients heard_ MC_GUARDED_BY(mutex_);          // members: until when each had heard everything as it came to us first
    EventWriter changed_ MC_GUARDED_BY(mutex_);          // for everybody
    std::vector<Waiter> waiters_ MC_GUARDED_BY(mutex_);
    std::vector<HeldOrder> held_orders_ MC_GUARDED_BY(mutex_);        // oldest first
    std::vector<HeldDrop> held_drops_ MC_GUARDED_BY(mutex_);          // oldest first
    uint64_t last_filled_ MC_GUARDED_BY(mutex_) = 0;                  // the last event that a range was filled
    std::vector<Replaced> rested_ MC_GUARDED_BY(mutex_);              // not applied yet
    std::atomic<bool> any_rested_{false};                             // written under mutex_
    std::atomic<bool> holds_drops_{false};                            // written under mutex_
    uint64_t planned_from_ MC_GUARDED_BY(mutex_) = 0;                 // the first event about the targets of the copy that is being ordered
    std::map<uint64_t, size_t> acknowledged_ MC_GUARDED_BY(mutex_);   // changes, and how many followers have come that far
    std::unordered_map<uint64_t, Time> asked_ MC_GUARDED_BY(mutex_);  // processes: until when they may remember something
    std::vector<Forsaken> forsaken_ MC_GUARDED_BY(mutex_);            // since end_soon()
    std::atomic<bool> ending_{false};                                 // written under mutex_
    std::atomic<size_t> unsent_followers_{0};                         // those that have something unsent; written under mutex_
    std::atomic<bool> went_on_{false};                                // everybody knows that this life has left tombstones
    std::atomic<uint64_t> relied_{0}, word_{0};                       // see Position
    std::atomic<uint64_t> changes_{0};                                // written under mutex_
    std::atomic<uint64_t> observed_{0};                               // things to send, ever; written under mutex_
    std::atomic<uint64_t> told_{0};                                   // of these, sent; written under push_mutex_
};

}  // namespace mooncake::store
