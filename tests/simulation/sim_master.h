// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "store/master/check.h"
#include "store/master/jobs/jobs.h"
#include "store/master/ops/object_ops.h"
#include "store/master/ops/segment_ops.h"
#include "store/master/ops/task_ops.h"
#include "store/master/words.h"
#include "tests/simulation/sim_feed.h"

namespace mooncake::store::simulation {

/// The master under test with the feeds its server keeps, and with what an outsider may hold it to: after every step its state agrees
/// with itself, and no acknowledged value vanishes without a change that says why.
class SimMaster final : public StateObserver {
public:
    SimMaster(World& world, const MasterOptions& options)
        : world_(world), options_(options), state_(std::make_unique<MasterState>(options, this)) {
        tick();
    }

    /// Runs one operation now. What nodes must know of it is on its way when this returns.
    template <typename Op>
    auto run(Op&& op) {
        const size_t before = log_.size();
        Transaction transaction(*state_, &log_);
        auto reply = op(transaction);
        ++steps;
        flush();
        after_step(before);
        return reply;
    }

    /// A client follows: it is told everything there is, in small parts, with whatever happens in between.
    void follow(const ClientId& client, std::shared_ptr<SimFeed> feed);

    /// Some client is too slow for it: its feed ends.
    void cut_off_somebody();
    /// Loses everything, and starts again empty.
    void crash_cold();
    /// Starts again from its log.
    void crash_warm();
    void check_replay();

    /// A client was told that its put is complete.
    void acknowledged(const std::string& key, uint64_t generation) {
        uint64_t& known = acknowledged_[key];
        known = std::max(known, generation);
        if (rebuilding_) std::erase_if(expected_, [&](const Expected& one) { return one.key == key; });  // has a successor
    }
    bool holds(const std::string& key, uint64_t at_least) const {
        const ObjectId id = state_->objects().find(TenantTable::kDefault, key);
        return id != 0 && state_->objects()[id].generation >= at_least;
    }
    /// All nodes have come back: what they were told to the end must be there again.
    void check_recovered(const std::function<bool(const SegmentId&)>& survived);
    /// Told by a node that may not have heard the last of it: its bytes may be another's, as the checksum shows.
    void doubt(uint64_t generation) { doubtful_.insert(generation); }
    bool doubtful(uint64_t generation) const { return doubtful_.contains(generation); }
    /// A client was told that this key is removed.
    void removed(const std::string& key) {
        removed_[key] = state_->next_generation();
        std::erase_if(expected_, [&](const Expected& one) { return one.key == key; });  // also what its node has yet to tell
    }
    bool rebuilding() const { return rebuilding_; }
    const MasterState& state() const { return *state_; }
    uint64_t view() const { return endpoint.life; }

    Endpoint endpoint;
    uint64_t steps = 0;
    bool writer_limited = false;  // whoever starts a write now says that there are segments it cannot reach

private:
    struct Stream {
        std::shared_ptr<SimFeed> feed;
        uint64_t number = 0;
        std::vector<SegmentNumber> untold;
        RangeCursor cursor;
        FeedUpdate pending;
        bool complete = false;
    };
    struct Expected {
        std::string key;
        uint64_t generation = 0;
        SegmentId segment;
    };

    void range_planned(const MasterState& state, SegmentNumber segment, WriteId write) override;
    void range_planned_for_copy(const MasterState& state, SegmentNumber segment, CopyId copy) override;
    void range_filled(const MasterState& state, SegmentNumber segment, uint64_t generation, uint64_t checksum) override;
    void range_dropped(const MasterState& state, SegmentNumber segment, uint64_t generation, Duration rest) override;
    void value_outdated(const MasterState&, ObjectId) override {}
    void copy_ordered(const MasterState& state, CopyId copy) override;
    void segment_removed(const MasterState&, SegmentNumber) override {}

    Stream* stream_of(const MasterState& state, SegmentNumber segment);
    void tell_more(const ClientId& client, uint64_t stream);
    void flush();
    void end_life();
    void expect_return();
    void after_step(size_t before);
    void note_change(const Change& change) const;
    void check_change(const Change& change);
    void check_placement(const WriteStarted& write);
    void set_follows(const ClientId& client, bool follows);
    void tick() {
        world_.after(100ms, [this] {
            if (endpoint.up) run([this](Transaction& t) { return run_jobs(t, world_.now()); });
            tick();
        });
    }

    World& world_;
    MasterOptions options_;
    std::map<ClientId, Stream> streams_;
    uint64_t last_stream_ = 0;
    std::unique_ptr<MasterState> state_;
    std::vector<Change> log_;
    std::map<std::string, uint64_t> acknowledged_;  // key -> generation, while it must be there
    bool rebuilding_ = false;                       // after a cold start, until all nodes have come back
    std::vector<Expected> expected_;                // then
    std::set<uint64_t> doubtful_;
    std::set<uint64_t> dropped_;  // generations, since the cold start
    // The same: values of a key, or of any, below that generation were removed.
    std::map<std::string, uint64_t> removed_;
    uint64_t all_removed_ = 0;
};

}  // namespace mooncake::store::simulation
