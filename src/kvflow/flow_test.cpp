// SPDX-License-Identifier: Apache-2.0
#include "kvflow/flow.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <future>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "kvplan/testing/sides.h"

namespace mooncake::kvplan {
namespace {

using testing::attention;
using testing::Order;
using testing::Side;
using testing::SideSpec;
using testing::Tokens;

Deadline soon() { return Deadline::after(30s); }

/// A side whose ranks have engines, and whose addresses are real.
struct LiveSide {
    LiveSide(const SideSpec& spec, Tokens tokens, std::mt19937_64& random, const std::string& transport)
        : side(testing::make_side(spec, tokens, random)), ranks(side.ranks) {
        for (size_t i = 0; i < ranks.size(); ++i) {
            EngineConfig config{.local_name = "127.0.0.1", .metadata = "P2PHANDSHAKE", .protocol = "tcp"};
            config.options.transports = {transport};
            engines.push_back(Engine::create(std::move(config)).value());
            std::vector<uint8_t>& memory = side.memory[i];
            EXPECT_TRUE(engines[i]->register_memory(memory.data(), memory.size()));
            ranks[i].segment = engines[i]->segment_name();
            for (Region& region : ranks[i].regions) region.base += reinterpret_cast<uint64_t>(memory.data()) - Side::memory_base(i);
        }
    }
    /// What is wrong with the first cell that is.
    std::string wrong(Tokens tokens) {
        for (const testing::Cell& cell : testing::cells_of_tokens(side, tokens))
            for (uint64_t i = 0; i < cell.region->cell_bytes; ++i)
                if (*side.at(cell.rank, cell.address + i) != testing::byte_of(testing::seed_of(*cell.region, cell.head, cell.token), i))
                    return format_text("rank {}, layer {}, head {}, token {}", cell.rank, cell.region->layer, cell.head, cell.token);
        return {};
    }

    Side side;
    std::vector<Rank> ranks;
    std::vector<std::unique_ptr<Engine>> engines;  // after the memory: they let go of it first
};

class FlowTest : public ::testing::TestWithParam<std::tuple<std::string, Direction>> {
protected:
    FlowTest() { testing::fill(source.side, tokens); }

    bool writes() const { return std::get<Direction>(GetParam()) == Direction::kWrite; }
    LiveSide& active() { return writes() ? source : target; }
    LiveSide& passive() { return writes() ? target : source; }

    Plan plan_for(uint32_t rank) {
        const Request request = testing::request_of(source.side, target.side, tokens, 7);
        auto plan = writes() ? make_plan_of_source(source.ranks, target.ranks, request, rank)
                             : make_plan(source.ranks, target.ranks, request, std::span(&rank, 1));
        EXPECT_TRUE(plan) << (plan ? "" : plan.error().to_string());
        return std::move(*plan);
    }
    FlowSetup setup_for(uint32_t rank, std::optional<Notification> notification = {}) {
        return {.sources = source.ranks,
                .targets = target.ranks,
                .plan = plan_for(rank),
                .direction = std::get<Direction>(GetParam()),
                .rank = rank,
                .notification = std::move(notification)};
    }
    std::unique_ptr<Flow> flow_of(uint32_t rank, std::optional<Notification> notification = {}) {
        auto flow = Flow::create(*active().engines[rank], setup_for(rank, std::move(notification)), soon());
        EXPECT_TRUE(flow) << (flow ? "" : flow.error().to_string());
        return std::move(*flow);
    }
    static std::vector<std::string> take(Engine& engine, size_t number) {
        std::vector<std::string> names;
        const Deadline deadline = soon();
        while (names.size() < number && !deadline.passed()) {
            for (const Notification& one : engine.take_notifications()) names.push_back(one.name);
            std::this_thread::yield();
        }
        return names;
    }

    const Tokens tokens{.first = 3, .count = 117};
    std::mt19937_64 random{5};
    const std::string transport = std::get<std::string>(GetParam());
    LiveSide source{SideSpec{.tp = 2, .stages = {attention(3, 6, 64), attention(2, 6, 64, 3)}, .block_tokens = {16}}, tokens, random,
                    transport};
    LiveSide target{SideSpec{.tp = 3, .stages = {attention(5, 6, 64)}, .block_tokens = {8}, .order = Order::kHeadMajor}, tokens, random,
                    transport};
};

TEST_P(FlowTest, AllRanksTogetherFillEveryTarget) {
    for (uint32_t rank = 0; rank < active().ranks.size(); ++rank) {
        const auto flow = flow_of(rank);
        std::promise<Result<uint64_t>> told;
        ASSERT_TRUE(flow->submit("", [&](const Result<uint64_t>& outcome) { told.set_value(outcome); }));
        const auto outcome = told.get_future().get();
        ASSERT_TRUE(outcome) << outcome.error().to_string();
        uint64_t bytes = 0;
        for (const Flow::Peer& peer : flow->peers()) bytes += peer.bytes;
        EXPECT_EQ(*outcome, bytes);
        EXPECT_EQ(flow->wait(soon()).value(), bytes);
    }
    EXPECT_EQ(target.wrong(tokens), "");
}

TEST_P(FlowTest, LayersGoOneByOneInAnyOrderAndOnce) {
    for (uint32_t rank = 0; rank < active().ranks.size(); ++rank) {
        const auto flow = flow_of(rank);
        std::vector<std::string> layers = flow->layers();
        std::shuffle(layers.begin(), layers.end(), random);
        std::atomic<size_t> told{0};
        for (const std::string& layer : layers)
            ASSERT_TRUE(flow->submit(layer, [&](const Result<uint64_t>& outcome) { told += outcome.has_value() ? 1 : 0; }));
        EXPECT_EQ(flow->submit(layers[0], {}).error().code(), Code::kAlreadyExists);
        EXPECT_EQ(flow->submit("no such layer", {}).error().code(), Code::kNotFound);
        ASSERT_TRUE(flow->wait(soon()));
        EXPECT_EQ(told, layers.size());
        ASSERT_TRUE(flow->submit("", {})) << "nothing is left";
    }
    EXPECT_EQ(target.wrong(tokens), "");
}

TEST_P(FlowTest, PeersAreToldOnceTheirLastByteHasMoved) {
    for (uint32_t rank = 0; rank < active().ranks.size(); ++rank) {
        const std::string name = "request-1/" + std::to_string(rank);
        const auto flow = flow_of(rank, Notification{.name = name, .message = "done"});
        std::map<uint32_t, std::set<std::string>> left;  // layers that a peer still has with us
        for (const PairPlan& pair : plan_for(rank).pairs)
            for (const Strip& strip : pair.strips)
                left[writes() ? pair.target : pair.source].insert(target.ranks[pair.target].regions[strip.target_region].layer);
        ASSERT_EQ(left.size(), flow->peers().size());
        for (const std::string& layer : flow->layers()) {
            ASSERT_TRUE(flow->submit(layer, {}));
            ASSERT_TRUE(flow->wait(soon()));
            for (auto& [peer, layers] : left) {
                Engine& engine = *passive().engines[peer];
                if (layers.erase(layer) != 0 && layers.empty()) {
                    EXPECT_EQ(take(engine, 1), std::vector{name}) << layer;
                }
                EXPECT_TRUE(engine.take_notifications().empty()) << layer;
            }
        }
    }
    EXPECT_EQ(target.wrong(tokens), "");
}

TEST_P(FlowTest, ANewLifeOfAPeerGetsNothing) {
    const auto flow = flow_of(0, Notification{.name = "done", .message = ""});
    std::vector<Incarnation> lives;
    for (const auto& engine : passive().engines) lives.push_back(engine->incarnation());
    ASSERT_TRUE(flow->submit(flow->layers()[0], {}));
    ASSERT_TRUE(flow->wait(soon()));
    FlowSetup wrong = setup_for(0, Notification{.name = "done", .message = ""});
    wrong.lives.assign(passive().ranks.size(), Incarnation::random());
    const auto stale = Flow::create(*active().engines[0], std::move(wrong), soon()).value();
    ASSERT_TRUE(stale->submit("", {}));
    const auto outcome = stale->wait(soon());
    ASSERT_FALSE(outcome);
    EXPECT_EQ(outcome.error().code(), Code::kStale) << outcome.error().to_string();
    for (const auto& engine : passive().engines) EXPECT_TRUE(engine->take_notifications().empty());
    FlowSetup right = setup_for(0);
    right.lives = lives;
    const auto again = Flow::create(*active().engines[0], std::move(right), soon()).value();
    ASSERT_TRUE(again->submit("", {}));
    EXPECT_TRUE(again->wait(soon()));
}

TEST_P(FlowTest, WhatFailedWithAPeerEndsTheRestOfIt) {
    // Else a peer that does not answer costs its time-out for every two layers.
    const auto flow = flow_of(0);
    const auto failure_of = [&](std::string_view layer) {
        std::promise<Result<uint64_t>> told;
        EXPECT_TRUE(flow->submit(layer, [&](const Result<uint64_t>& outcome) { told.set_value(outcome); }));
        const auto outcome = told.get_future().get();
        return outcome ? Code::kOk : outcome.error().code();
    };
    const auto for_all = [&](const auto& act) {
        for (size_t i = 0; i < passive().engines.size(); ++i) act(*passive().engines[i], passive().side.memory[i]);
    };
    for_all([](Engine& engine, std::vector<uint8_t>& memory) { ASSERT_TRUE(engine.unregister_memory(memory.data())); });
    EXPECT_EQ(failure_of(flow->layers()[0]), Code::kNotRegistered);
    for_all([](Engine& engine, std::vector<uint8_t>& memory) { ASSERT_TRUE(engine.register_memory(memory.data(), memory.size())); });
    EXPECT_EQ(failure_of(flow->layers()[1]), Code::kNotRegistered);
    EXPECT_EQ(failure_of(""), Code::kNotRegistered);
    const auto again = flow_of(0);
    ASSERT_TRUE(again->submit("", {}));
    EXPECT_TRUE(again->wait(soon())) << "another flow is another attempt";
}

TEST_P(FlowTest, WhatIsCancelledIsOverAndCannotBeStarted) {
    const auto flow = flow_of(0);
    std::promise<Result<uint64_t>> told;
    ASSERT_TRUE(flow->submit("", [&](const Result<uint64_t>& outcome) { told.set_value(outcome); }));
    flow->cancel();
    const auto outcome = told.get_future().get();  // either: it may have been quicker
    if (!outcome) {
        EXPECT_EQ(outcome.error().code(), Code::kCancelled) << outcome.error().to_string();
    }
    const auto other = flow_of(0);
    other->cancel();
    EXPECT_EQ(other->submit("", {}).error().code(), Code::kCancelled);
    EXPECT_EQ(other->wait(soon()).value(), 0u);
}

TEST_P(FlowTest, AnEngineThatClosesEndsIt) {
    const auto flow = flow_of(0);
    ASSERT_TRUE(flow->submit(flow->layers()[0], {}));
    ASSERT_TRUE(active().engines[0]->close());
    std::promise<Result<uint64_t>> told;
    ASSERT_TRUE(flow->submit("", [&](const Result<uint64_t>& outcome) { told.set_value(outcome); }));
    EXPECT_FALSE(told.get_future().get());
    EXPECT_FALSE(flow->wait(soon()));
}

TEST_P(FlowTest, WhatContradictsItselfIsRefused) {
    Engine& engine = *active().engines[0];
    const auto refused = [&](const std::function<void(FlowSetup&)>& spoil) {
        FlowSetup setup = setup_for(0);
        spoil(setup);
        const auto flow = Flow::create(engine, std::move(setup), soon());
        return !flow && flow.error().code() == Code::kInvalidArgument;
    };
    EXPECT_TRUE(refused([](FlowSetup& setup) { setup.rank = 100; }));
    EXPECT_TRUE(refused([](FlowSetup& setup) { setup.lives.resize(1); }));
    EXPECT_TRUE(refused([](FlowSetup& setup) { setup.plan.pairs[0].target = 100; }));
    EXPECT_TRUE(refused([](FlowSetup& setup) { setup.plan.pairs[0].strips[0].source_region = 100; }));
    EXPECT_TRUE(refused([](FlowSetup& setup) { setup.plan.pairs[0].strips[0].run_set = 100; }));
    EXPECT_TRUE(refused([](FlowSetup& setup) { setup.notification = Notification{.name = std::string(2 << 20, 'x'), .message = ""}; }));
}

INSTANTIATE_TEST_SUITE_P(Ways, FlowTest,
                         ::testing::Combine(::testing::Values("tcp", "shm"), ::testing::Values(Direction::kWrite, Direction::kRead)),
                         [](const auto& way) {
                             return std::string(std::get<0>(way.param)) +
                                    (std::get<1>(way.param) == Direction::kWrite ? "_write" : "_read");
                         });

}  // namespace
}  // namespace mooncake::kvplan
