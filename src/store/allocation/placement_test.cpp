// SPDX-License-Identifier: Apache-2.0
#include "store/allocation/placement.h"

#include <gtest/gtest.h>

#include <vector>

namespace mooncake::store {
namespace {

constexpr uint64_t kGiB = 1 << 30;

/// Segments named 0, 1, ... on one host each unless told otherwise.
struct Pool {
    std::vector<SegmentView> segments;
    std::vector<uint64_t> sums;

    void add(uint64_t capacity, uint64_t free, uint32_t host = UINT32_MAX) {
        const auto number = static_cast<uint32_t>(segments.size());
        segments.push_back(
            {.segment = number, .name = number, .host = host == UINT32_MAX ? number : host, .capacity = capacity, .free = free});
        sums.push_back((sums.empty() ? 0 : sums.back()) + capacity);
    }
    PlacementView view() const { return {segments, sums}; }
    std::optional<uint32_t> choose(const PlacementWish& wish, Random& random) const {
        return choose_segment(view(), wish, random, [](const SegmentView&) { return true; });
    }
    std::vector<double> shares(PlacementWish wish, int writes = 50'000) const {
        Random random(7);
        std::vector<double> result(segments.size());
        for (int i = 0; i < writes; ++i) result[choose(wish, random).value()] += 1.0 / writes;
        return result;
    }
};

TEST(Placement, FindsNothingInAnEmptyOrFullPool) {
    Random random(1);
    Pool pool;
    EXPECT_FALSE(pool.choose({.length = 1}, random));
    for (int i = 0; i < 5; ++i) pool.add(kGiB, 100);
    EXPECT_FALSE(pool.choose({.length = 101}, random));
    EXPECT_TRUE(pool.choose({.length = 100}, random));
}

TEST(Placement, FindsTheOnlySegmentWithRoomUnderEveryStrategy) {
    Random random(1);
    Pool pool;
    for (uint32_t i = 0; i < 200; ++i) pool.add(kGiB, i == 137 ? 100 : 0);
    for (auto strategy : {PlacementStrategy::kRandom, PlacementStrategy::kFreeRatioFirst, PlacementStrategy::kLocalFirst})
        EXPECT_EQ(pool.choose({.strategy = strategy, .length = 100, .host = 3}, random), 137u);
}

TEST(Placement, GivesAnEmptyNewcomerItsFairShareAndAtMostTwice) {
    Pool pool;
    for (int i = 0; i < 9; ++i) pool.add(kGiB, kGiB / 10);
    pool.add(kGiB, kGiB);
    const auto shares = pool.shares({.length = 64});
    EXPECT_GT(shares[9], 0.10);
    EXPECT_LT(shares[9], 0.20);
    for (int i = 0; i < 9; ++i) EXPECT_GT(shares[static_cast<size_t>(i)], 0.07);
}

TEST(Placement, SpreadsByCapacity) {
    Pool pool;
    for (uint64_t size : {1, 1, 8}) pool.add(size * kGiB, size * kGiB);
    const auto shares = pool.shares({.length = 64});
    EXPECT_NEAR(shares[2], 0.8, 0.05);
}

TEST(Placement, TriesPreferredSegmentsInOrderThenOthers) {
    Random random(1);
    Pool pool;
    for (int i = 0; i < 10; ++i) pool.add(kGiB, kGiB);
    pool.segments[4].free = 0;
    const std::vector<uint32_t> preferred{4, 8, 2};
    for (int i = 0; i < 20; ++i) EXPECT_EQ(pool.choose({.length = 64, .preferred = preferred}, random), 8u);
    pool.segments[8].free = pool.segments[2].free = 0;
    EXPECT_TRUE(pool.choose({.length = 64, .preferred = preferred}, random));
}

TEST(Placement, PutsReplicasOnDifferentNames) {
    Random random(1);
    Pool pool;
    for (int i = 0; i < 6; ++i) pool.add(kGiB, kGiB);
    for (auto& segment : pool.segments) segment.name = segment.segment / 2;
    const std::vector<uint32_t> used{0, 2};
    for (int i = 0; i < 50; ++i) {
        const auto chosen = pool.choose({.length = 64, .names_in_use = used}, random);
        EXPECT_EQ(pool.segments[chosen.value()].name, 1u);
    }
    const std::vector<uint32_t> all{0, 1, 2};
    EXPECT_FALSE(pool.choose({.length = 64, .names_in_use = all}, random));
}

TEST(Placement, TakesSuspectsOnlyOnDemand) {
    Random random(1);
    Pool pool;
    for (int i = 0; i < 4; ++i) pool.add(kGiB, kGiB);
    for (size_t i : {0, 1, 2}) pool.segments[i].suspect = true;
    const std::vector<uint32_t> preferred{0};
    for (int i = 0; i < 50; ++i) EXPECT_EQ(pool.choose({.length = 64, .preferred = preferred}, random), 3u);
    const std::vector<uint32_t> unreachable{3};
    EXPECT_FALSE(pool.choose({.length = 64, .unreachable = unreachable}, random));
    for (int i = 0; i < 50; ++i) EXPECT_LT(pool.choose({.length = 64, .suspects = true}, random).value(), 3u);
    for (size_t i : {0, 1, 2}) pool.segments[i].free = 0;
    EXPECT_FALSE(pool.choose({.length = 64, .suspects = true}, random));
    EXPECT_EQ(pool.choose({.length = 64, .unreachable = unreachable, .suspects = true}, random), 3u);
}

TEST(Placement, LocalFirstStaysOnTheHostThenGoesRoundTheHosts) {
    Random random(1);
    Pool pool;
    for (uint32_t host : {0, 0, 1, 1, 2}) pool.add(kGiB, kGiB, host);
    PlacementWish wish{.strategy = PlacementStrategy::kLocalFirst, .length = 64, .host = 1};
    EXPECT_EQ(pool.choose(wish, random), 2u);
    wish.key_hash = 1;
    EXPECT_EQ(pool.choose(wish, random), 3u) << "rotated by the key";
    pool.segments[2].free = pool.segments[3].free = 0;
    EXPECT_EQ(pool.choose(wish, random), 4u) << "the next host";
    pool.segments[4].free = 0;
    EXPECT_EQ(pool.choose(wish, random), 1u) << "round the end";
    wish.host = UINT32_MAX;
    EXPECT_TRUE(pool.choose(wish, random)) << "unknown host: as random";
}

TEST(Placement, FreeRatioFirstPrefersTheEmptiest) {
    Pool pool;
    for (int i = 0; i < 4; ++i) pool.add(kGiB, kGiB / 10);
    pool.add(kGiB, kGiB);
    const auto shares = pool.shares({.strategy = PlacementStrategy::kFreeRatioFirst, .length = 64});
    EXPECT_GT(shares[4], 0.6);
}

TEST(Placement, RepeatsItselfForTheSameSeed) {
    Pool pool;
    for (int i = 0; i < 50; ++i) pool.add(kGiB, kGiB);
    EXPECT_EQ(pool.shares({.length = 64}, 1000), pool.shares({.length = 64}, 1000));
}

TEST(HostOf, CutsThePort) {
    EXPECT_EQ(host_of("10.0.0.1:12345"), "10.0.0.1");
    EXPECT_EQ(host_of("[fe80::1]:5"), "[fe80::1]");
    EXPECT_EQ(host_of("fe80::1"), "fe80::1");
    EXPECT_EQ(host_of("node"), "node");
    EXPECT_EQ(host_of(""), "");
}

}  // namespace
}  // namespace mooncake::store
