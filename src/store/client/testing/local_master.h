// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/thread_annotations.h"
#include "store/master/observer.h"
#include "store/master/state.h"
#include "store/master/transaction.h"
#include "store/node/master_link.h"

namespace mooncake::store::testing {

/// A master in this process: the real core behind a lock, the feed built from what the core reports, and faults on demand. Hands
/// out one MasterApi per client. Thread-safe. Must outlive the MasterApis.
class LocalMaster final : public StateObserver {
public:
    explicit LocalMaster(const MasterOptions& options = default_options());
    ~LocalMaster() override;

    static MasterOptions default_options();
    std::unique_ptr<MasterApi> connect();

    /// Another life at the same address: knows nothing, and the feeds of the old one have ended.
    void restart();
    /// Takes calls about objects and answers none of them, until told otherwise.
    void set_silent(bool silent);
    /// The next `count` calls of this name act, but their answers are lost.
    void lose_answers(const std::string& call, int count);
    /// The next `count` calls of this name do not arrive.
    void lose_calls(const std::string& call, int count);
    /// Runs before each call of this name, on the caller's thread, without any lock.
    void before(const std::string& call, std::function<void()> hook);
    /// How many calls of this name arrived.
    int calls(const std::string& call) const;
    /// Runs the jobs the master does by itself.
    void run_jobs();
    /// Looks at, or alters, the state as an operation would.
    void act(const std::function<void(Transaction&, Time)>& operation);
    /// Orders the owner of the source to copy.
    void order_copy(const ClientId& owner, const CopyOrder& order);
    std::vector<TaskEnd> ended_tasks() const;
    uint64_t epoch() const;

private:
    class Api;
    struct Follower {
        ClientId client;
        MasterApi::Feed feed;
        std::deque<FeedUpdate> queue;
        uint64_t told = 0, acknowledged = 0, wanted = 0;  // sequence numbers; `wanted`: the last that is to be acknowledged
        bool ended = false;
        Error why;
    };
    struct Fault {
        int lost_answers = 0, lost_calls = 0, count = 0;
        std::function<void()> before;
    };

    template <typename Operation>
    auto run(const char* name, Deadline deadline, const std::atomic<bool>& stopped, Operation&& operation)
        -> Result<decltype(operation(std::declval<Transaction&>(), Time{}, uint64_t{}))>;
    Result<> arrive(const char* name, Deadline deadline, const std::atomic<bool>& stopped, bool& lose_answer);
    uint64_t follow(const ClientId& client, MasterApi::Feed feed);
    void unfollow(uint64_t number);
    void acknowledge(const ClientId& client, uint64_t sequence);
    SegmentsReply list_segments();

    void range_planned(const MasterState& state, SegmentNumber segment, WriteId write) override;
    void range_planned_for_copy(const MasterState&, SegmentNumber, CopyId) override {}
    void range_filled(const MasterState& state, SegmentNumber segment, uint64_t generation, uint64_t checksum) override;
    void range_dropped(const MasterState& state, SegmentNumber segment, uint64_t generation, Duration rest) override;
    void value_outdated(const MasterState& state, ObjectId object) override;
    void copy_ordered(const MasterState&, CopyId) override {}
    void segment_removed(const MasterState&, SegmentNumber) override {}

    /// Sends what one operation caused, and waits for the acknowledgements.
    void publish();
    void tell(Follower& follower, FeedUpdate update) MC_REQUIRES(feed_mutex_);
    FeedUpdate first_report(const ClientId& client) MC_REQUIRES(mutex_);
    void deliver(const std::stop_token& stop);

    const MasterOptions options_;
    mutable Mutex mutex_;
    std::condition_variable_any mood_changed_;
    std::unique_ptr<MasterState> state_ MC_GUARDED_BY(mutex_);
    uint64_t epoch_ MC_GUARDED_BY(mutex_) = 1;
    bool silent_ MC_GUARDED_BY(mutex_) = false;
    std::map<std::string, Fault> faults_ MC_GUARDED_BY(mutex_);
    std::vector<TaskEnd> ended_ MC_GUARDED_BY(mutex_);
    std::map<ClientId, FeedUpdate> caused_ MC_GUARDED_BY(mutex_);  // by the running operation, for the owners of ranges
    std::vector<KeyChanged> changed_ MC_GUARDED_BY(mutex_);        // for everybody

    mutable Mutex feed_mutex_;  // may be taken while mutex_ is held
    std::condition_variable_any feed_changed_;
    std::map<uint64_t, Follower> followers_ MC_GUARDED_BY(feed_mutex_);
    uint64_t next_follower_ MC_GUARDED_BY(feed_mutex_) = 1;
    uint64_t delivering_ MC_GUARDED_BY(feed_mutex_) = 0;  // whose callback runs now
    std::jthread thread_;
};

}  // namespace mooncake::store::testing
