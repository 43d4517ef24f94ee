// SPDX-License-Identifier: Apache-2.0
#include "conductor/simulate/simulator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace mooncake::conductor {
namespace {

using testing::HasSubstr;

TEST(Trace, ReadsLinesOfJson) {
    const auto trace = parse_trace(
        "{\"timestamp\": 5, \"input_length\": 600, \"output_length\": 7, \"hash_ids\": [1, 2]}\n\n"
        "{\"timestamp\": 5, \"input_length\": 1, \"output_length\": 0, \"hash_ids\": []}");
    ASSERT_TRUE(trace);
    ASSERT_EQ(trace->size(), 2u);
    EXPECT_EQ(trace->front().input_tokens, 600u);
    EXPECT_EQ(trace->front().blocks, (std::vector<BlockHash>{1, 2}));
}

TEST(Trace, NamesTheLineThatIsWrong) {
    const std::string good = "{\"timestamp\": 5, \"input_length\": 600, \"output_length\": 7, \"hash_ids\": [1, 2]}\n";
    for (const std::string bad :
         {"nonsense", "[]", "{\"timestamp\": 5}", "{\"timestamp\": -5, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": []}",
          "{\"timestamp\": 4, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": []}",
          "{\"timestamp\": 6, \"input_length\": 1e300, \"output_length\": 1, \"hash_ids\": []}",
          "{\"timestamp\": 6, \"input_length\": 999999999999, \"output_length\": 1, \"hash_ids\": []}",
          "{\"timestamp\": 6, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": [\"a\"]}",
          "{\"timestamp\": 6, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": 3}"}) {
        const auto trace = parse_trace(good + bad);
        ASSERT_FALSE(trace) << bad;
        EXPECT_THAT(trace.error().message(), HasSubstr("line 2")) << bad;
    }
    EXPECT_FALSE(parse_trace(""));
    EXPECT_FALSE(read_trace("/no/such/file"));
}

/// Conversations that begin with one of a few long instructions and come back with longer prompts, in bursts: what the traces of real clusters
/// look like, only smaller.
std::vector<TraceRequest> conversations(size_t count) {
    std::mt19937_64 random(7);
    BlockHash next = 1'000'000;
    const auto begin = [&] {
        std::vector<BlockHash> talk;
        for (BlockHash block = random() % 40 * 100, end = block + 20; block < end; ++block) talk.push_back(block);
        return talk;
    };
    std::vector<std::vector<BlockHash>> talks(200);
    std::vector<TraceRequest> trace;
    for (size_t i = 0; i < count; ++i) {
        auto& talk = talks[random() % talks.size()];
        if (talk.empty() || talk.size() > 60) talk = begin();
        const size_t more = 1 + random() % (random() % 8 == 0 ? 30 : 6);
        for (size_t j = 0; j < more; ++j) talk.push_back(next++);
        trace.push_back({.timestamp_ms = i / 6 * 3000,
                         .input_tokens = talk.size() * 512 - random() % 512,
                         .output_tokens = 100 + random() % 300,
                         .blocks = talk});
    }
    return trace;
}

SimulationResult run(std::span<const TraceRequest> trace, Policy policy, SimulationOptions options = {}) {
    options.scheduler.policy = policy;
    options.cache_blocks_per_node = 1000;
    return simulate(trace, options).value();
}

TEST(Simulation, PutsThePoliciesInTheirOrder) {
    const auto trace = conversations(3000);
    const double random = run(trace, Policy::kRandom).mean_ttft, least = run(trace, Policy::kLeastLoaded).mean_ttft,
                 local = run(trace, Policy::kLocal).mean_ttft, global = run(trace, Policy::kGlobal).mean_ttft;
    EXPECT_GT(random, least);
    EXPECT_GT(least, local);
    EXPECT_GT(local, global);
}

TEST(Simulation, GainsFromLettingShortPromptsGoFirstWhenManyWait) {
    const auto trace = conversations(3000);
    EXPECT_GT(run(trace, Policy::kGlobal, {.speed = 3}).mean_ttft, run(trace, Policy::kFlow, {.speed = 3}).mean_ttft);
}

TEST(Simulation, GivesEveryRequestItsFirstTokenAndIsTheSameEachTime) {
    const auto trace = conversations(800);
    for (const Policy policy : {Policy::kRandom, Policy::kGlobal, Policy::kFlow}) {
        const SimulationResult one = run(trace, policy), other = run(trace, policy);
        EXPECT_EQ(one.ttft.size(), trace.size());
        EXPECT_EQ(one.ttft, other.ttft);
        EXPECT_LE(one.quantile(0.5), one.quantile(0.99));
    }
}

TEST(Simulation, OfOneNodeInOrderOfArrivalIsTheSumOfTheWork) {
    std::vector<TraceRequest> trace;
    for (BlockHash i = 0; i < 3; ++i) trace.push_back({.timestamp_ms = 0, .input_tokens = 5120, .output_tokens = 1, .blocks = {100 * i}});
    const SimulationResult result = run(trace, Policy::kGlobal, {.nodes = 1});
    const double each = PrefillCost({}, SimulationOptions{}.flops_per_second).predict(5120, 0).latency;
    ASSERT_EQ(result.ttft.size(), 3u);
    for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(result.ttft[i], static_cast<double>(i + 1) * each, 1e-6);
}

TEST(Simulation, OfPipelinesShortensLongPrompts) {
    const auto trace = conversations(1500);
    const SimulationResult alone = run(trace, Policy::kFlow), piped = run(trace, Policy::kFlow, {.stages = 2});
    EXPECT_LT(piped.quantile(0.99), alone.quantile(0.99));
    EXPECT_LT(piped.mean_ttft, alone.mean_ttft);
}

TEST(Simulation, RefusesEarlyUnderOverload) {
    SimulationOptions options{.nodes = 4, .decode_nodes = 2, .speed = 4};
    options.scheduler.ttft_target = 5;
    options.scheduler.tbt_target = 0.1;
    const auto trace = conversations(1000);
    const SimulationResult result = run(trace, Policy::kFlow, options);
    uint64_t refused = 0;
    for (const auto& [reason, count] : result.rejected) refused += count;
    EXPECT_GT(refused, 0u);
    EXPECT_EQ(result.ttft.size() + refused, trace.size());
    EXPECT_GT(result.mean_tbt, 0);
}

TEST(Simulation, RefusesOptionsThatMakeNoSense) {
    const auto trace = conversations(2);
    EXPECT_FALSE(simulate(trace, {.nodes = 1, .stages = 2}));
    EXPECT_FALSE(simulate(trace, {.stages = 0}));
    EXPECT_FALSE(simulate(trace, {.speed = 0}));
}

TEST(Plot, IsAnSvgImageWithEveryCurve) {
    const std::vector<Curve> curves{{"one <1>", {0.1, 1, 10}}, {"none", {}}, {"single", {5}}};
    const std::string svg = plot_shares("A & B", "seconds", curves);
    EXPECT_THAT(svg, testing::StartsWith("<svg"));
    EXPECT_THAT(svg, HasSubstr("one &lt;1>"));
    EXPECT_THAT(svg, HasSubstr("A &amp; B"));
    EXPECT_EQ(svg.find("nan"), std::string::npos);
}

}  // namespace
}  // namespace mooncake::conductor
