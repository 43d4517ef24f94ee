// SPDX-License-Identifier: Apache-2.0
// The parts of the scheduler that stand alone: hashes, costs, the index, breakers, tenants.
#include <gtest/gtest.h>

#include <numeric>

#include "conductor/schedule/blocks.h"
#include "conductor/schedule/breaker.h"
#include "conductor/schedule/cost.h"
#include "conductor/schedule/prefix_index.h"
#include "conductor/schedule/tenants.h"

namespace mooncake::conductor {
namespace {

constexpr Time kStart{};
constexpr double kFlops = 0.5 * 8 * 312e12;

std::vector<uint32_t> some_tokens(size_t count) {
    std::vector<uint32_t> tokens(count);
    std::iota(tokens.begin(), tokens.end(), 7);
    return tokens;
}

TEST(Blocks, OfACommonPrefixAreTheSameAndLaterOnesDiffer) {
    std::vector<uint32_t> one = some_tokens(64), other = one;
    other[33] ^= 1;
    const auto a = hash_tokens(one, 16, 0), b = hash_tokens(other, 16, 0);
    ASSERT_EQ(a.size(), 4u);
    EXPECT_EQ(a[0], b[0]);
    EXPECT_EQ(a[1], b[1]);
    EXPECT_NE(a[2], b[2]);
    EXPECT_NE(a[3], b[3]) << "the chain carries the difference on";
}

TEST(Blocks, LeaveOutWhatIsNotFullAndKnowTheirSeed) {
    const auto tokens = some_tokens(31);
    EXPECT_EQ(hash_tokens(tokens, 16, 0).size(), 1u);
    EXPECT_TRUE(hash_tokens(std::span(tokens).first(15), 16, 0).empty());
    EXPECT_TRUE(hash_tokens(tokens, 0, 0).empty());
    EXPECT_NE(hash_tokens(tokens, 16, 0), hash_tokens(tokens, 16, 1));
    EXPECT_EQ(hash_text("abcdefgh", 4, 0).size(), 2u);
}

TEST(PrefillCost, IsTheFormulaBeforeAnythingWasMeasured) {
    const PrefillCost cost({}, kFlops);
    const double n = 12035, p = 4096, d = 8192;
    const auto flops = [&](double x) { return 80 * (4 * x * x * d + 22 * x * d * d); };
    EXPECT_NEAR(cost.predict(12035, 4096).latency, (flops(n) - flops(p)) / kFlops, 1e-9);
    EXPECT_EQ(cost.predict(100, 100).latency, 0);
    EXPECT_EQ(cost.predict(100, 500).latency, 0) << "a prefix longer than the prompt is the prompt";
    EXPECT_EQ(ModelShape{}.kv_bytes_per_token(), 327680);
}

TEST(PrefillCost, FollowsWhatIsMeasured) {
    PrefillCost cost({}, kFlops);
    const auto truth = [](double n, double p) { return 0.05 + 3e-4 * (n - p) + 5e-9 * (n * n - p * p); };
    for (int i = 0; i < 600; ++i) {
        const uint64_t tokens = 500 + (i * 7919) % 60000, prefix = (i % 3) * tokens / 4;
        cost.observe(tokens, prefix, truth(static_cast<double>(tokens), static_cast<double>(prefix)));
    }
    for (const uint64_t tokens : {2000, 10000, 50000}) {
        const double expected = truth(static_cast<double>(tokens), 0);
        EXPECT_NEAR(cost.predict(tokens, 0).latency, expected, 0.05 * expected) << tokens;
    }
}

TEST(PrefillCost, PassesOverNonsense) {
    PrefillCost cost({}, kFlops);
    const double before = cost.predict(1000, 0).latency;
    for (const double nonsense : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) cost.observe(1000, 0, nonsense);
    EXPECT_EQ(cost.predict(1000, 0).latency, before);
    EXPECT_EQ(cost.observations(), 0u);
}

TEST(PrefillCost, OfAPipelineIsShorterForLongPromptsAndTheNextStartsSooner) {
    const PrefillCost alone({}, kFlops), two({}, kFlops, {.stages = 2, .chunk_tokens = 4096});
    const PrefillTime one = alone.predict(65536, 0), piped = two.predict(65536, 0);
    EXPECT_NEAR(piped.occupancy, one.occupancy / 2, 1e-9);
    EXPECT_GT(piped.latency, piped.occupancy);
    EXPECT_LT(piped.latency, one.latency * 0.6);
    EXPECT_NEAR(two.predict(1000, 0).latency, alone.predict(1000, 0).latency, 1e-9) << "one chunk passes the stages one after the other";
}

TEST(DecodeCost, FollowsWhatIsMeasured) {
    DecodeCost cost(0.02, 2e-4, 2e-8);
    for (int i = 0; i < 400; ++i) cost.observe(1 + i % 64, 1e4 * (i % 50), 0.01 + 1e-3 * (1 + i % 64) + 1e-7 * 1e4 * (i % 50));
    EXPECT_NEAR(cost.predict(32, 2e5), 0.01 + 0.032 + 0.02, 0.006);
}

std::vector<uint32_t> matched(const PrefixIndex& index, const std::vector<BlockHash>& blocks) {
    std::vector<uint32_t> lengths;
    index.match(blocks, lengths);
    return lengths;
}

TEST(PrefixIndex, FindsTheLongestPrefixOfEachInstance) {
    PrefixIndex index;
    for (InstanceId id = 0; id < 3; ++id) index.add_instance(id, 10);
    index.use(0, std::vector<BlockHash>{1, 2, 3});
    index.use(1, std::vector<BlockHash>{1, 2});
    index.insert(2, 3);  // without those before it, it is of no use
    EXPECT_EQ(matched(index, {1, 2, 3, 4}), (std::vector<uint32_t>{3, 2, 0}));
    EXPECT_EQ(matched(index, {}), (std::vector<uint32_t>{0, 0, 0}));
    index.remove(0, 2);
    EXPECT_EQ(matched(index, {1, 2, 3}), (std::vector<uint32_t>{1, 2, 0}));
}

TEST(PrefixIndex, EvictsTheLongestUnusedAndOfOnePromptItsEndFirst) {
    PrefixIndex index;
    index.add_instance(0, 4);
    index.use(0, std::vector<BlockHash>{1, 2, 3});
    index.use(0, std::vector<BlockHash>{7, 8});
    EXPECT_EQ(index.size(0), 4u);
    EXPECT_EQ(matched(index, {1, 2, 3}), (std::vector<uint32_t>{2}));
    index.use(0, std::vector<BlockHash>{1});
    index.use(0, std::vector<BlockHash>{20, 21});
    EXPECT_TRUE(index.holds(0, 1));
    EXPECT_FALSE(index.holds(0, 2));
    EXPECT_FALSE(index.holds(0, 8));
}

TEST(PrefixIndex, HoldsNoMoreThanItsCapacityOfAPromptThatIsLonger) {
    PrefixIndex index;
    index.add_instance(0, 3);
    index.add_instance(1, 0);
    std::vector<BlockHash> blocks(100);
    std::iota(blocks.begin(), blocks.end(), 1);
    index.use(0, blocks);
    index.use(1, blocks);
    EXPECT_EQ(matched(index, blocks), (std::vector<uint32_t>{3, 0}));
}

TEST(PrefixIndex, ForgetsWhoIsClearedOrRemoved) {
    PrefixIndex index;
    index.add_instance(0, 9);
    index.add_instance(1, 9);
    index.use(0, std::vector<BlockHash>{1, 2});
    index.use(1, std::vector<BlockHash>{1, 2});
    index.clear(0);
    EXPECT_EQ(matched(index, {1, 2}), (std::vector<uint32_t>{0, 2}));
    index.remove_instance(1);
    EXPECT_EQ(matched(index, {1, 2}), (std::vector<uint32_t>{0, 0}));
    index.add_instance(1, 9);
    EXPECT_EQ(index.size(1), 0u);
}

TEST(Breaker, OpensAfterFailuresInARowAndTriesOnceWhenItHasRested) {
    Breaker breaker({.failures_to_open = 3, .rest = 5s, .rest_max = 12s});
    breaker.failed(kStart);
    breaker.failed(kStart);
    breaker.succeeded();
    breaker.failed(kStart);
    breaker.failed(kStart);
    EXPECT_TRUE(breaker.allows(kStart));
    breaker.failed(kStart);
    EXPECT_EQ(breaker.state(kStart), BreakerState::kOpen);
    EXPECT_FALSE(breaker.allows(kStart + 4s));
    EXPECT_TRUE(breaker.allows(kStart + 5s));
    breaker.begin(kStart + 5s);
    EXPECT_FALSE(breaker.allows(kStart + 5s)) << "one trial at a time";
    breaker.failed(kStart + 6s);
    EXPECT_FALSE(breaker.allows(kStart + 15s)) << "the rest doubles";
    EXPECT_TRUE(breaker.allows(kStart + 16s));
    breaker.begin(kStart + 16s);
    breaker.abandoned();
    EXPECT_TRUE(breaker.allows(kStart + 16s));
    breaker.begin(kStart + 16s);
    breaker.succeeded();
    EXPECT_EQ(breaker.state(kStart + 16s), BreakerState::kClosed);
}

TEST(Breaker, TriesAtOnceWhatAnswersAgainUnlessATrialFailed) {
    Breaker breaker({.failures_to_open = 1, .rest = 5s});
    breaker.failed(kStart);
    EXPECT_FALSE(breaker.allows(kStart + 1s));
    breaker.answered(kStart + 1s);
    EXPECT_TRUE(breaker.allows(kStart + 1s));
    breaker.begin(kStart + 1s);
    EXPECT_FALSE(breaker.allows(kStart + 1s)) << "one trial at a time";
    breaker.failed(kStart + 2s);
    breaker.answered(kStart + 3s);
    EXPECT_FALSE(breaker.allows(kStart + 3s)) << "it answers, but does not work";
    EXPECT_TRUE(breaker.allows(kStart + 12s));
}

TEST(Breaker, IsNotHeldOpenLongerByRequestsThatBeganBefore) {
    Breaker breaker({.failures_to_open = 1, .rest = 5s});
    breaker.failed(kStart);
    breaker.failed(kStart + 4s);
    EXPECT_TRUE(breaker.allows(kStart + 5s));
}

TEST(TenantTable, LimitsRequestsAtTheSameTime) {
    TenantTable tenants({.requests_max = 2});
    EXPECT_FALSE(tenants.admit("a", 1, kStart));
    EXPECT_FALSE(tenants.admit("a", 1, kStart));
    EXPECT_TRUE(tenants.admit("a", 1, kStart));
    EXPECT_FALSE(tenants.admit("b", 1, kStart)) << "others have their own";
    tenants.release("a");
    EXPECT_FALSE(tenants.admit("a", 1, kStart));
    EXPECT_EQ(tenants.requests("a"), 2u);
}

TEST(TenantTable, LimitsTokensPerSecondAndSaysWhenToComeBack) {
    TenantTable tenants;
    tenants.set("a", {.tokens_per_second = 100, .burst_tokens = 1000});
    EXPECT_FALSE(tenants.admit("a", 900, kStart));
    const auto later = tenants.admit("a", 300, kStart);
    ASSERT_TRUE(later);
    EXPECT_NEAR(*later, 2, 1e-9);
    EXPECT_FALSE(tenants.admit("a", 300, kStart + 2s));
    EXPECT_FALSE(tenants.admit("other", 1'000'000, kStart));
}

TEST(TenantTable, LetsAPromptLargerThanTheBucketInWhenItIsFull) {
    TenantTable tenants({.tokens_per_second = 100, .burst_tokens = 1000});
    EXPECT_FALSE(tenants.admit("a", 5000, kStart));
    EXPECT_TRUE(tenants.admit("a", 1, kStart + 1s));
    EXPECT_TRUE(tenants.admit("a", 5000, kStart + 49s));
    EXPECT_FALSE(tenants.admit("a", 5000, kStart + 51s));
}

}  // namespace
}  // namespace mooncake::conductor
