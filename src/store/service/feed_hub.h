// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "base/thread_annotations.h"
#include "base/time.h"
#include "rpc/rpc.h"
#include "store/master/observer.h"
#include "store/master/words.h"
#include "store/protocol/messages_feed.h"
#include "store/service/locked_master.h"

namespace mooncake::store {

struct FeedHubOptions {
    Duration acknowledge_timeout = 50ms;
    size_t update_bytes_max = 1 << 20;  // about; more becomes several updates
    size_t changed_keys_max = 4096;     // in one update; more become "all"
    size_t report_ranges = 512;         // of a first report, under one hold of the lock
    int report_window = 8;              // parts of a first report that are not acknowledged yet
};

/// Tells every following client what it must know (docs/store.md, "The feed"), in order, and remembers who has acknowledged what. What
/// happens is noted under the master's lock and sent by flush() without it; one thread sends for all. A client that reads too slowly is
/// cut off. Thread-safe; its lock is taken inside the master's, never the other way round.
class FeedHub final : public StateObserver, public FeedSink {
public:
    explicit FeedHub(FeedHubOptions options = {}) : options_(options) {}

    // ---- with the master's lock

    void range_planned(const MasterState& state, SegmentNumber segment, WriteId write) override;
    void range_planned_for_copy(const MasterState& state, SegmentNumber segment, CopyId copy) override;
    void range_filled(const MasterState& state, SegmentNumber segment, uint64_t generation, uint64_t checksum) override;
    void range_dropped(const MasterState& state, SegmentNumber segment, uint64_t generation, Duration rest) override;
    void value_outdated(const MasterState& state, ObjectId object) override;
    void copy_ordered(const MasterState& state, CopyId copy) override;
    void segment_removed(const MasterState& state, SegmentNumber segment) override;

    /// Begins the feed of a member; an earlier one of the same client ends.
    void follow(const MasterState& state, ClientNumber client, std::unique_ptr<rpc::Responder> responder);
    /// Members whose feed broke and who do not follow yet again, each told once.
    std::vector<ClientId> take_lost(const MasterState& state);
    /// Ends the feeds of clients that are no members any more.
    void drop_strangers(const MasterState& state);
    /// Tells the client the next part of what its segments hold, if wants_report().
    void report(const MasterState& state, const ClientId& client, Time now);
    /// How often a value has become outdated so far; see answer_when_acknowledged().
    uint64_t changes() const noexcept { return changes_.load(std::memory_order_acquire); }

    // ---- without

    /// Returns when everything that was noted before is with the kernel, or its reader is slow or cut off.
    void flush() override;
    bool wants_report(const ClientId& client) const;
    void acknowledge(const ClientId& client, uint64_t sequence);
    /// Answers once every follower has acknowledged the changes up to this one, at latest after acknowledge_timeout. A follower that did not
    /// make it in time is not waited for again until it has caught up. Returns when expire() must be called; Time::max(): answered.
    Time answer_when_acknowledged(uint64_t change, std::unique_ptr<rpc::Responder> responder, rpc::Bytes body, Time now);
    /// Answers those who have waited long enough; returns when it is to be called again.
    Time expire(Time now);
    /// Answers everybody who waits.
    void answer_all();
    size_t followers() const;

private:
    /// One update to be.
    struct Item {
        FeedWriter writer;
        std::optional<FeedUpdate> report;  // instead
        bool reset = false, complete = false, sealed = false;
    };
    struct Awaited {
        uint64_t sequence = 0;
        uint64_t change = 0;  // 0: a part of the report
        Time sent{};
    };
    struct Follower {
        ClientId client;
        std::unique_ptr<rpc::Responder> responder;  // used only under push_mutex_, but for abandoned()
        // the rest under mutex_
        std::deque<Item> items;
        uint64_t sequence = 0;  // of the last update sent
        std::deque<Awaited> awaited;
        uint64_t acknowledged = 0;  // change
        bool lagging = false;
        std::vector<SegmentNumber> unreported;  // the last one is being told
        RangeCursor cursor;
        bool reporting = false;
        int report_outstanding = 0;
    };
    using FollowerPtr = std::shared_ptr<Follower>;
    /// A member that does not follow now.
    struct Lost {
        uint64_t sequence = 0;  // of the last update sent to it
        bool told = false;
    };
    struct Ended {
        FollowerPtr follower;
        Error why;
    };
    struct Outgoing {
        FollowerPtr follower;
        std::deque<Item> items;
        uint64_t first_sequence = 0;
        bool changed = false;  // the last item carries changes
    };
    struct Waiter {
        uint64_t change = 0;
        Time deadline{};
        std::unique_ptr<rpc::Responder> responder;
        rpc::Bytes body;
    };

    Follower* owner(const MasterState& state, SegmentNumber segment) MC_REQUIRES(mutex_);
    FeedWriter& open_item(Follower& follower) MC_REQUIRES(mutex_);
    void noted() MC_REQUIRES(mutex_) { observed_.fetch_add(1, std::memory_order_release); }
    void end(FollowerPtr follower, Error why) MC_REQUIRES(mutex_);
    /// The follower has gone, or must go; its client may come again.
    void lose(const Follower& follower) MC_REQUIRES(mutex_) { lost_[follower.client] = {.sequence = follower.sequence}; }
    std::vector<Outgoing> take_outgoing() MC_REQUIRES(mutex_);
    void plan(Follower& follower, const RangePlanned& word) MC_REQUIRES(mutex_);
    static bool send(Outgoing& outgoing);
    /// Those who need not wait any more.
    std::vector<Waiter> settle() MC_REQUIRES(mutex_);
    static void answer(std::vector<Waiter> waiters);

    const FeedHubOptions options_;
    Mutex push_mutex_;  // the one who sends; taken before mutex_
    mutable Mutex mutex_;
    std::unordered_map<ClientId, FollowerPtr> followers_ MC_GUARDED_BY(mutex_);
    std::unordered_map<SegmentNumber, Follower*> by_segment_ MC_GUARDED_BY(mutex_);  // remembered; null: nobody
    std::unordered_map<ClientId, Lost> lost_ MC_GUARDED_BY(mutex_);
    std::vector<Ended> ended_ MC_GUARDED_BY(mutex_);
    FeedWriter changed_ MC_GUARDED_BY(mutex_);  // for everybody
    std::vector<Waiter> waiters_ MC_GUARDED_BY(mutex_);
    std::atomic<uint64_t> changes_{0};   // written under mutex_
    std::atomic<uint64_t> observed_{0};  // things to send, ever; written under mutex_
    std::atomic<uint64_t> told_{0};      // of these, sent; written under push_mutex_
};

}  // namespace mooncake::store
