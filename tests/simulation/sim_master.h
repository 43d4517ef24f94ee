// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "store/master/testing/check.h"
#include "store/master/jobs/jobs.h"
#include "store/master/ops/object_ops.h"
#include "store/master/ops/segment_ops.h"
#include "store/master/ops/task_ops.h"
#include "store/master/ops/tier_ops.h"
#include "store/service/copy_end.h"
#include "store/service/event_hub.h"
#include "tests/simulation/sim_event_stream.h"

namespace mooncake::store::simulation {

/// A responder of the master's, for the hub.
class SimResponder : public rpc::Responder {
public:
    Deadline deadline() const noexcept override { return Deadline::never(); }
    const rpc::PeerInfo& peer() const noexcept override { return peer_; }

private:
    const rpc::PeerInfo peer_;
};

/// Answers when the hub allows it.
class SimAnswer final : public SimResponder {
public:
    explicit SimAnswer(std::function<void()> done) : done_(std::move(done)) {}
    void reply(rpc::Bytes) override { done_(); }
    void fail(const Error&) override {}
    bool part(rpc::Bytes, Haste) override { return false; }
    bool abandoned() const noexcept override { return false; }

private:
    const std::function<void()> done_;
};

/// What the hub has of an event stream.
class SimStreamEnd final : public SimResponder {
public:
    explicit SimStreamEnd(std::shared_ptr<SimEventStream> stream) : stream_(std::move(stream)) {}
    void reply(rpc::Bytes) override { stream_->finish(); }
    void fail(const Error&) override { stream_->fail(); }
    bool part(rpc::Bytes body, Haste) override { return stream_->write(std::move(body)); }
    uint64_t unsent_bytes() const noexcept override { return stream_->unsent_bytes(); }
    void break_off(const Error&) override { stream_->break_off(); }
    bool abandoned() const noexcept override { return stream_->abandoned(); }

private:
    const std::shared_ptr<SimEventStream> stream_;
};

/// The master under test with the hub that its server has, and with what an outsider may hold it to: after every step its state agrees
/// with itself, no acknowledged value vanishes without a change that says why, and none that was removed or replaced comes back.
class SimMaster final : public StateObserver {
public:
    SimMaster(World& world, const MasterOptions& options)
        : world_(world), options_(options), state_(std::make_unique<MasterState>(options, this)) {
        start_hub();
        admit_tenant();
        tick();
    }

    /// Runs one operation now. What nodes must know of it is on its way when this returns.
    template <typename Op>
    auto run(Op&& op) {
        const size_t before = log_.size();
        Transaction transaction(*state_, &log_);
        hub_->catch_up(transaction, world_.now());
        auto reply = op(transaction);
        ++steps;
        hub_->flush();
        after_step(before);
        if (when_held_back && hub_->holds_back()) std::exchange(when_held_back, nullptr)();
        return reply;
    }
    /// As run(), of an operation that lets somebody in or out.
    template <typename Op>
    auto run_membership(Op&& op) {
        return run([&](Transaction& transaction) {
            note_lost(transaction);
            auto reply = op(transaction);
            hub_->drop_strangers(*state_);
            return reply;
        });
    }
    /// As run(); `done(reply)` when the nodes have been told what they must know first of the key. Never, if this life ends before.
    template <typename Op, typename Done>
    void run_and_tell(const std::string& key, Op&& op, Done&& done) {
        const EventHub::Position before = hub_->position();
        auto reply = run(op);
        EventHub::Caused caused;
        caused.add(before, hub_->position());
        hub_->rely_on(*state_, tenant(), key, caused);
        if (caused.nothing()) return done(reply);
        expire_by(hub_->answer_when_told(caused, std::make_unique<SimAnswer>([done, reply] { done(reply); }), {}, world_.now()));
    }

    /// A client follows: it is told everything there is, in small parts, with whatever happens in between.
    void follow(const ClientId& client, const std::shared_ptr<SimEventStream>& stream);
    void acknowledge(const ClientId& client, uint64_t sequence);
    /// A client makes itself known, and is told what it has missed.
    UnheardEvents::Missed introduced(const ClientId& client, uint64_t heard, Incarnation life = {}, uint64_t remembered = 0) {
        run_membership([&](Transaction& t) {
            return remount(t, {.client = client, .segments = {}, .life = life, .remembered_update = remembered}, world_.now());
        });
        return hub_->missed(client, heard, remembered);
    }

    void end_copy(const TaskEnd& end);
    void end_copies(const ClientId& client, const std::vector<CopyEnd>& ends, uint64_t window_bytes);
    /// A disk does not hold this value any more, by its node's own decision or with all that was on it.
    void lost_on_disk(uint64_t generation) { lost_on_disks_.insert(generation); }

    /// Some client is too slow for it: its event stream ends.
    void cut_off_somebody();
    /// A node's connection breaks.
    void lose_stream_of(const ClientId& client);
    /// Loses everything, and starts again empty.
    void crash_cold();
    /// Starts again from its log.
    void crash_warm();
    void check_replay();

    /// A client was told that its put is complete.
    void acknowledged(const std::string& key, uint64_t generation) {
        uint64_t& known = acknowledged_[key];
        known = std::max(known, generation);
        if (state_->generations().is_own(generation)) newest_[key] = std::max(newest_[key], generation);
        if (rebuilding_) std::erase_if(expected_, [&](const Expected& one) { return one.key == key; });  // has a successor
    }
    bool holds(const std::string& key, uint64_t at_least) const {
        const ObjectId id = find(key);
        return id != 0 && state_->objects()[id].generation >= at_least;
    }
    ObjectId find(const std::string& key) const {
        const TenantNumber number = state_->tenant(tenant());
        return number == 0 ? 0 : state_->objects().find(number, key);
    }
    /// Of all values. Where there are tenants, a master that lost everything knows it only by what nodes tell, until somebody gives it a quota.
    std::string_view tenant() const { return options_.tenants ? "somebody" : TenantTable::kDefaultName; }
    /// All nodes have come back: what they were told to the end must be there again.
    void check_recovered(const std::function<bool(const SegmentId&)>& survived);
    /// Told by a node that may not have heard the last of it: its bytes may be another's, as the checksum shows.
    void doubt(uint64_t generation) { doubtful_.insert(generation); }
    bool doubtful(uint64_t generation) const { return doubtful_.contains(generation); }
    /// The last kill took events along that this node should have heard, and that the log has: it will tell of what is gone.
    bool missed_words(const ClientId& client) const { return missed_words_.contains(client); }
    /// A client was told that this key is removed.
    void removed(const std::string& key) {
        removed_[key] = ++moment_;
        expect_no_more([&](const Expected& one) { return one.key == key; });  // also what its node has yet to tell
    }
    /// A client has removed by force what matches, or (nothing) all.
    void removed_matching(const std::function<bool(std::string_view)>& matches) {
        if (matches) removed_matching_.emplace_back(matches, ++moment_);
        else all_removed_ = ++moment_;
        expect_no_more([&](const Expected& one) { return !matches || matches(one.key); });
    }
    bool rebuilding() const { return rebuilding_; }
    const MasterState& state() const { return *state_; }
    uint64_t view() const { return endpoint.life; }

    Endpoint endpoint;
    uint64_t steps = 0;
    /// Runs once, when some node does not take what it is told of a value that replaces another one.
    std::function<void()> when_held_back;
    /// Whether the disk that is this segment holds that value; true where nobody knows.
    std::function<bool(const SegmentId& disk, uint64_t generation)> disk_has;
    bool writer_limited = false;  // whoever starts a write now says that there are segments it cannot reach

private:
    struct Expected {
        std::string key;
        uint64_t generation = 0;
        SegmentId segment;
        // Or this one, on all of these, which was to replace it.
        uint64_t successor = 0;
        std::vector<SegmentId> successors_segments{};
    };
    /// A value that another one is replacing.
    struct Replaced {
        uint64_t successor = 0;
        std::vector<SegmentNumber> segments;
    };

    void range_planned(const MasterState& state, SegmentNumber segment, WriteId write) override {
        hub_->range_planned(state, segment, write);
    }
    void range_planned_for_copy(const MasterState& state, SegmentNumber segment, CopyId copy) override {
        hub_->range_planned_for_copy(state, segment, copy);
    }
    void range_filled(const MasterState& state, SegmentNumber segment, uint64_t generation, uint64_t checksum) override {
        // Older values of the key are outdated from now on, whatever becomes of this one.
        if (const auto found = written_.find(generation); found != written_.end())
            std::erase_if(expected_, [&](const Expected& one) { return one.key == found->second; });
        ended_.try_emplace(generation, ++moment_);  // and not copies of it
        hub_->range_filled(state, segment, generation, checksum);
    }
    void range_dropped(const MasterState& state, SegmentNumber segment, uint64_t generation, Duration quarantine, bool rests) override {
        dropped_.insert(generation);
        note_replaced(state, segment, generation);
        hub_->range_dropped(state, segment, generation, quarantine, rests);
    }
    void value_outdated(const MasterState& state, ObjectId object) override { hub_->value_outdated(state, object); }
    void tombstone_left(const MasterState& state) override { hub_->tombstone_left(state); }
    void copy_ordered(const MasterState& state, CopyId copy) override { hub_->copy_ordered(state, copy); }
    bool tells_of_replaced() const noexcept override { return true; }
    void segment_removed(const MasterState& state, SegmentNumber segment) override;

    template <typename Which>
    void expect_no_more(Which&& which) {
        std::erase_if(expected_, which);
        std::erase_if(away_, which);
    }
    /// Whether somebody has removed the key since the write of this value ended.
    bool was_removed(const std::string& key, uint64_t generation) const;
    void admit_tenant();
    void start_hub();
    void report(const ClientId& client);
    void note_lost(Transaction& transaction);
    void expire_by(Time at);
    SimEventStream* stream_of(SegmentNumber segment) const;
    void end_life();
    void expect_return();
    void expect_one_of_two(const std::string& key, uint64_t generation, const Object& object);
    void note_replaced(const MasterState& state, SegmentNumber segment, uint64_t generation);
    void after_step(size_t before);
    void note_change(const Change& change) const;
    void check_change(const Change& change);
    void check_placement(const WriteStarted& write);
    void check_returned(SegmentNumber segment);
    void check_released(const MemoryReleased& released);
    void tick() {
        world_.after(100ms, [this] {
            if (endpoint.up) {
                run([this](Transaction& t) {
                    run_jobs(t, world_.now());
                    hub_->drop_strangers(t.state());
                    note_lost(t);
                    return true;
                });
                hub_->expire(world_.now());
            }
            tick();
        });
    }

    World& world_;
    MasterOptions options_;
    std::unique_ptr<EventHub> hub_;                                // of this life
    std::map<ClientId, std::shared_ptr<SimEventStream>> streams_;  // the latest of each
    std::unique_ptr<MasterState> state_;
    std::vector<Change> log_;
    std::map<std::string, uint64_t> acknowledged_;  // key -> generation, while it must be there
    bool rebuilding_ = false;                       // after a cold start, until all nodes have come back
    std::vector<Expected> expected_;                // then
    std::vector<Expected> away_;                    // the last replica went with its node; if that comes back in this life, so does it
    std::set<uint64_t> doubtful_;
    std::set<uint64_t> lost_on_disks_;
    std::set<ClientId> missed_words_;
    std::map<uint64_t, std::string> written_;  // by generation: of which key
    std::set<ClientId> told_early_;            // of replicas whose copy had not ended, at some time in this life
    uint64_t moment_ = 0;                      // rises
    std::map<uint64_t, uint64_t> ended_;       // by generation: when its write did
    std::set<uint64_t> dropped_;               // generations, since the cold start
    std::map<uint64_t, Replaced> replaced_;    // by generation, in this life
    // The same: when values of a key, of those that match, or of all were removed.
    std::map<std::string, uint64_t> removed_;
    std::vector<std::pair<std::function<bool(std::string_view)>, uint64_t>> removed_matching_;
    uint64_t all_removed_ = 0;
    std::map<std::string, uint64_t> newest_;  // that was acknowledged in this life or told by a node, whatever became of it
};

}  // namespace mooncake::store::simulation
