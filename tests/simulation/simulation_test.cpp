// SPDX-License-Identifier: Apache-2.0
// Many clients and nodes against one master, in simulated time, with everything going wrong that can: see world.h and the duties
// in sim_node.h and sim_client.h. A failing run prints its seed; MC_SIM_SEED repeats it, MC_SIM_SEEDS=N runs that many, from MC_SIM_FIRST on.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "base/options.h"
#include "tests/simulation/sim_client.h"

namespace mooncake::store::simulation {
namespace {

constexpr uint64_t kSegmentBytes = 64 * 1024;

class Simulation {
public:
    explicit Simulation(uint64_t seed, bool loud = false, bool warm = false)
        : world_(seed), master_(world_, options(world_)), keys_(20 + world_.random.below(180)), warm_(warm) {
        world_.loud = loud;
        world_.loss = world_.chance(0.3) ? 0.10 : 0.01;
        const uint64_t node_count = 1 + world_.random.below(5), client_count = 1 + world_.random.below(6);
        for (uint64_t i = 1; i <= node_count; ++i) {
            const uint64_t disk = master_.state().options().offloads() && world_.chance(0.8) ? kSegmentBytes * (1 + world_.random.below(6))
                                                                                             : 0;
            const bool warm_node = warm && world_.chance(0.8);
            nodes_.push_back(std::make_unique<SimNode>(world_, master_, nodes_, i, kSegmentBytes, disk, warm_node));
        }
        for (uint64_t i = 1; i <= client_count; ++i) clients_.push_back(std::make_unique<SimClient>(world_, master_, nodes_, i, keys_));
        master_.disk_has = [this](const SegmentId& disk, uint64_t generation) {
            for (const auto& node : nodes_)
                if (node->disk_spec().id == disk) return node->on_disk(generation);
            return true;  // its process is down
        };
        fault_gap_ = world_.between(500ms, 8s);
        faults();
    }

    void run() {
        world_.run_until(world_.now() + 60s);
        settle();
    }
    const std::string& violation() const { return world_.violation; }
    uint64_t puts() const { return sum(&SimClient::puts); }
    uint64_t gets() const { return sum(&SimClient::gets); }
    uint64_t refused() const { return sum(&SimClient::refused); }
    uint64_t late() const { return sum(&SimClient::late); }
    uint64_t missed() const { return sum(&SimClient::missed); }
    uint64_t copies() const {
        uint64_t total = 0;
        for (const auto& node : nodes_) total += node->copies;
        return total;
    }
    uint64_t of_nodes(uint64_t SimNode::*what) const {
        uint64_t total = 0;
        for (const auto& node : nodes_) total += (*node).*what;
        return total;
    }
    uint64_t released() const { return master_.state().tiers().totals.released; }
    uint64_t steps() const { return master_.steps; }
    uint64_t bytes_lost() const { return world_.bytes_lost; }

private:
    static MasterOptions options(World& world) {
        MasterOptions options;
        options.tenants = world.chance(0.3);
        options.lease_ttl = 2s;
        options.client_ttl = 3s;
        options.put_discard_timeout = 2s;
        options.put_release_timeout = 20s;
        options.silent_writer_quarantine = 4s;
        options.pending_task_timeout = options.processing_task_timeout = 8s;
        if (world.chance(0.5)) {
            options.offload_on_evict = world.chance(0.4);
            options.offload = !options.offload_on_evict || world.chance(0.5);
            options.offload_force_evict = world.chance(0.2);
            options.offload_queue_max = world.chance(0.3) ? 3 : 1000;
            options.promote = world.chance(0.6);
            options.promotion_threshold = 1 + static_cast<uint32_t>(world.random.below(2));
        }
        return options;
    }
    uint64_t sum(uint64_t SimClient::*what) const {
        uint64_t total = 0;
        for (const auto& client : clients_) total += (*client).*what;
        return total;
    }

    void faults() {
        world_.after(world_.between(fault_gap_ / 2, fault_gap_ * 2), [this] {
            if (calm_) return;
            faults();
            SimNode& node = *nodes_[world_.random.below(nodes_.size())];
            SimClient& client = *clients_[world_.random.below(clients_.size())];
            switch (world_.random.below(warm_ ? 18 : 14)) {
                case 0:
                    if (client.endpoint.up) client.crash();
                    break;
                case 1:
                    if (client.endpoint.up) client.leave();
                    break;
                case 2: client.endpoint.cut_until = world_.now() + world_.between(100ms, 8s); break;
                case 3:
                    if (!node.endpoint.up) break;
                    if (node.warm() && world_.chance(0.9)) node.restart();
                    else node.crash();
                    break;
                case 4: node.endpoint.cut_until = world_.now() + world_.between(100ms, 8s); break;
                case 5:
                    if (node.endpoint.up && node.warm()) node.restart();
                    else if (node.endpoint.up) node.renew_segment();
                    break;
                case 6: crash_master(false); break;
                case 7: crash_master(true); break;
                case 14:
                case 15:
                case 16:
                case 17:
                    if (node.endpoint.up && node.warm()) node.restart();
                    break;
                case 8:
                    if (master_.endpoint.up && !master_.rebuilding()) drain(node.spec().name);
                    break;
                case 10:  // just when a value replaces another one, and a node does not take that
                    master_.when_held_back = [this] {
                        world_.after(world_.between(1ms, 1s), [this] {
                            if (!calm_) crash_master(true);
                        });
                    };
                    break;
                case 9:  // a network that loses what is on its way
                    node.endpoint.cut_until = world_.now() + world_.between(100ms, 8s);
                    master_.lose_stream_of(node.id());
                    break;
                case 12: node.evict_from_disk(); break;
                case 13:
                    if (!node.endpoint.up) break;
                    node.crash();
                    node.lose_disk();
                    break;
                default: master_.cut_off_somebody(); break;
            }
        });
    }
    void drain(const std::string& name) {
        const DrainReply reply = master_.run(
            [&](Transaction& t) { return create_drain(t, {.segments = {name}, .targets = {}, .concurrency = 4}, world_.now()); });
        world_.after(world_.between(500ms, 8s), [this, job = reply.job] {
            if (master_.endpoint.up) master_.run([&](Transaction& t) { return cancel_drain(t, job, world_.now()); });
        });
    }
    void crash_master(bool cold) {
        if (!master_.endpoint.up) return;
        if (cold) master_.crash_cold();
        else master_.crash_warm();
        world_.after(world_.between(1ms, 3s), [this] { master_.endpoint.up = true; });
        if (cold) watch_rebuilding();
    }
    /// Once every living node is known again, what was acknowledged and lies on one of them must be back.
    void watch_rebuilding() {
        world_.after(50ms, [this, life = master_.endpoint.life] {
            if (life != master_.endpoint.life || !master_.rebuilding()) return;
            for (const auto& node : nodes_)
                if (!node->mounted()) return watch_rebuilding();
            master_.check_recovered([this](const SegmentId& segment) {
                for (const auto& node : nodes_)
                    if (node->spec().id == segment || node->disk_spec().id == segment) return true;
                return false;
            });
        });
    }

    /// Everybody calms down: whatever was begun must come to an end, and the pool must be usable.
    void settle() {
        if (!world_.violation.empty()) return;
        calm_ = true;
        world_.loss = world_.doubling = 0;
        for (const auto& client : clients_) client->stop();
        world_.run_until(world_.now() + 60s);
        if (!world_.violation.empty()) return;
        master_.run([&](Transaction& t) {  // drained ones are of use again
            for (const SegmentNumber number : t.state().segments().numbers())
                t.apply(SegmentStatusSet{.segment = number, .status = SegmentStatus::kOk, .now = world_.now()});
            return true;
        });
        master_.check_replay();
        if (master_.state().tasks().processing().size() + master_.state().tasks().pending().size() != 0)
            world_.violated("a task never ended");
        const MasterState& state = master_.state();
        if (!state.tiers().copies.empty()) world_.violated("an order between tiers never ended");
        if (state.write_count() != 0) world_.violated("a write never ended");
        if (state.quarantine().size() != 0) world_.violated("a range quarantined for ever");
        size_t segments = nodes_.size();
        for (const auto& node : nodes_) segments += node->has_disk() ? 1 : 0;
        if (state.segments().size() != segments) world_.violated("a node did not find back");
        size_t replicas = 0, catalogued = 0;
        for (ObjectId id = 1; id < state.objects().limit(); ++id) replicas += state.objects()[id].replicas.size();
        for (const auto& node : nodes_) catalogued += node->catalogued();
        if (replicas != catalogued) world_.violated(format_text("the nodes know of {} values, the master of {}", catalogued, replicas));
        const PutItem item{.key = "last", .length = kSegmentBytes};
        StoreCode code = StoreCode::kNoAvailableHandle;
        for (int i = 0; i < (state.offloads() ? 100 : 1) && code != StoreCode::kOk && world_.violation.empty(); ++i) {  // disks catch up
            if (i > 0) world_.run_until(world_.now() + 500ms);
            code = master_
                       .run([&](Transaction& t) {
                           return put_start(t, {.client = {9, 9}, .tenant = master_.tenant(), .config = {}, .items = {&item, 1}},
                                            world_.now());
                       })
                       .items[0]
                       .code;
        }
        if (code != StoreCode::kOk) world_.violated("a put of a whole segment is refused although everything may go");
    }

    World world_;
    SimMaster master_;
    const uint64_t keys_;
    std::vector<std::unique_ptr<SimNode>> nodes_;
    std::vector<std::unique_ptr<SimClient>> clients_;
    Duration fault_gap_{};
    bool calm_ = false;
    const bool warm_;
};

std::vector<uint64_t> seeds() {
    const Environment environment = process_environment();
    if (const auto one = environment("MC_SIM_SEED")) return {std::strtoull(one->c_str(), nullptr, 0)};
    const auto many = environment("MC_SIM_SEEDS"), from = environment("MC_SIM_FIRST");
    const uint64_t count = many ? std::strtoull(many->c_str(), nullptr, 0) : 90;  // few kills cost anything
    const uint64_t first = from ? std::strtoull(from->c_str(), nullptr, 0) : 1;
    std::vector<uint64_t> result;
    for (uint64_t i = 0; i < count; ++i) result.push_back(first + i);
    return result;
}

TEST(Simulation, HoldsWhatTheMasterPromisesUnderEveryFault) {
    uint64_t puts = 0, gets = 0, refused = 0, late = 0, missed = 0, copies = 0, steps = 0, lost = 0;
    uint64_t offloads = 0, promotions = 0, gone = 0, released = 0;
    for (const uint64_t seed : seeds()) {
        Simulation simulation(seed, seeds().size() == 1);
        simulation.run();
        ASSERT_EQ(simulation.violation(), "") << "repeat with MC_SIM_SEED=" << seed;
        puts += simulation.puts();
        gets += simulation.gets();
        refused += simulation.refused();
        late += simulation.late();
        missed += simulation.missed();
        copies += simulation.copies();
        steps += simulation.steps();
        lost += simulation.bytes_lost();
        offloads += simulation.of_nodes(&SimNode::offloads);
        promotions += simulation.of_nodes(&SimNode::promotions);
        gone += simulation.of_nodes(&SimNode::gone);
        released += simulation.released();
    }
    std::printf("%lu offloads, %lu values left memory, %lu promotions, %lu went from disks\n", offloads, released, promotions, gone);
    std::printf(
        "%lu puts, %lu gets, %lu copies, %lu refused for space, %lu reads outlived their lease, %lu met bytes of a lost event, %lu steps, "
        "%lu bytes lost with a killed master\n",
        puts, gets, copies, refused, late, missed, steps, lost);
    if (seeds().size() > 1) {  // one alone may be a pool that is down or full most of the time
        EXPECT_GT(puts, 100u * seeds().size());
        EXPECT_GT(gets, 50u * seeds().size());
        EXPECT_GT(copies, seeds().size());
        EXPECT_GT(lost, 0u) << "no kill cost anything";
        EXPECT_GT(offloads, seeds().size());
        EXPECT_GT(released, seeds().size() / 2);
        EXPECT_GT(promotions, 0u);
        EXPECT_GT(gone, 0u);
    }
}

TEST(Simulation, NodesThatComeBackWithTheirMemoryAreNodesThatWereAway) {
    uint64_t restarts = 0, brought_back = 0, puts = 0;
    for (const uint64_t seed : seeds()) {
        Simulation simulation(seed, seeds().size() == 1, /*warm=*/true);
        simulation.run();
        ASSERT_EQ(simulation.violation(), "") << "repeat with MC_SIM_SEED=" << seed;
        restarts += simulation.of_nodes(&SimNode::restarts);
        brought_back += simulation.of_nodes(&SimNode::brought_back);
        puts += simulation.puts();
    }
    std::printf("%lu puts, %lu restarts, %lu values came back with their memory\n", puts, restarts, brought_back);
    if (seeds().size() > 1) {
        EXPECT_GT(restarts, 2u * seeds().size());
        EXPECT_GT(brought_back, 10u * seeds().size());
    }
}

TEST(Simulation, RepeatsItself) {
    Simulation first(7), second(7);
    first.run();
    second.run();
    EXPECT_EQ(first.steps(), second.steps());
    EXPECT_EQ(first.puts(), second.puts());
}

}  // namespace
}  // namespace mooncake::store::simulation
