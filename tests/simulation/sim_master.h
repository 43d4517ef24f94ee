// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "store/master/check.h"
#include "store/master/jobs/jobs.h"
#include "store/master/ops/object_ops.h"
#include "store/master/ops/segment_ops.h"
#include "tests/simulation/world.h"

namespace mooncake::store::simulation {

/// The master under test, with what an outsider may hold it to: after every step its state agrees with itself, and no acknowledged value
/// vanishes without a change that says why.
class SimMaster {
public:
    SimMaster(World& world, const MasterOptions& options)
        : world_(world), options_(options), state_(std::make_unique<MasterState>(options)) {
        tick();
    }

    /// Runs one operation now.
    template <typename Op>
    auto run(Op&& op) {
        const size_t before = log_.size();
        Transaction transaction(*state_, &log_);
        auto reply = op(transaction);
        ++steps;
        after_step(before);
        return reply;
    }

    /// Loses everything, and starts again empty.
    void crash_cold() {
        world_.note("the master loses everything");
        end_life();
        log_.clear();
        options_.first_generation = std::max(options_.first_generation, state_->next_generation()) + 1'000'000;
        state_ = std::make_unique<MasterState>(options_);
    }
    /// Starts again from its log.
    void crash_warm() {
        world_.note("the master restarts from its log");
        check_replay();
        end_life();
        auto replayed = std::make_unique<MasterState>(options_);
        for (const Change& change : log_) replayed->apply(change);
        state_ = std::move(replayed);
    }
    void check_replay() {
        MasterState replayed(options_);
        for (const Change& change : log_) replayed.apply(change);
        if (dump_state(replayed) != dump_state(*state_)) world_.violated("replaying the changes gives another state");
    }

    /// A client was told that its put is complete.
    void acknowledged(const std::string& key, uint64_t generation) {
        uint64_t& known = acknowledged_[key];
        known = std::max(known, generation);
    }
    bool holds(const std::string& key, uint64_t at_least) const {
        const ObjectId id = state_->objects().find(TenantTable::kDefault, key);
        return id != 0 && state_->objects()[id].generation >= at_least;
    }
    void forget_acknowledged(const std::string& key) { acknowledged_.erase(key); }
    const std::map<std::string, uint64_t>& acknowledgements() const { return acknowledged_; }
    const MasterState& state() const { return *state_; }
    uint64_t view() const { return endpoint.life; }

    Endpoint endpoint;
    bool rebuilding = false;  // after a cold start, until all nodes have come back
    uint64_t steps = 0;

private:
    void tick() {
        world_.after(100ms, [this] {
            if (endpoint.up) run([this](Transaction& t) { return run_jobs(t, world_.now()); });
            tick();
        });
    }
    void end_life() {
        endpoint.up = false;
        ++endpoint.life;
    }
    void after_step(size_t before) {
        for (size_t i = before; world_.loud && i < log_.size(); ++i) note_change(log_[i]);
        if (const Result<> agreed = check_state(*state_); !agreed) world_.violated(agreed.error().to_string());
        bool excused = rebuilding;
        for (size_t i = before; i < log_.size(); ++i)
            excused |= std::holds_alternative<ObjectsRemoved>(log_[i]) || std::holds_alternative<SegmentRemoved>(log_[i]);
        std::erase_if(acknowledged_, [&](const auto& entry) {
            if (holds(entry.first, entry.second)) return false;
            if (!excused) world_.violated(format_text("{} of generation {} vanished", entry.first, entry.second));
            return !rebuilding;
        });
    }

    void note_change(const Change& change) const {
        if (const auto* one = std::get_if<WriteStarted>(&change))
            world_.note("master: write of generation {} starts at {}+{}", one->generation, one->replicas[0].segment,
                        one->replicas[0].offset);
        if (const auto* one = std::get_if<WriteCommitted>(&change)) world_.note("master: write {} ends", one->write);
        if (const auto* one = std::get_if<WriteDropped>(&change)) world_.note("master: write {} is dropped", one->write);
        if (const auto* one = std::get_if<ValueAdopted>(&change))
            world_.note("master: adopts {} of generation {} at {}+{}", one->key, one->generation, one->segment, one->offset);
        if (const auto* one = std::get_if<RangeReserved>(&change))
            world_.note("master: reserves {}+{} {}", one->segment, one->offset, one->length);
        if (const auto* one = std::get_if<SegmentMounted>(&change)) world_.note("master: mounts {}", one->segment.name);
        if (const auto* one = std::get_if<SegmentRemoved>(&change)) world_.note("master: removes segment {}", one->segment);
        if (const auto* one = std::get_if<ObjectsRemoved>(&change)) world_.note("master: removes {} objects", one->objects.size());
        if (const auto* one = std::get_if<ClientGone>(&change)) world_.note("master: client {} ended", one->client.low);
    }

    World& world_;
    MasterOptions options_;
    std::unique_ptr<MasterState> state_;
    std::vector<Change> log_;
    std::map<std::string, uint64_t> acknowledged_;  // key -> generation, while it must be there
};

}  // namespace mooncake::store::simulation
