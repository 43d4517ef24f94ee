// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace mooncake::fabric {
namespace {

using ::testing::ElementsAre;

constexpr uint64_t kMiB = 1 << 20;

/// Bytes until the next of some ends; after the last there is no chunk.
struct Ends {
    std::vector<uint64_t> ends;
    uint64_t operator()(uint64_t offset) const {
        for (const uint64_t end : ends)
            if (end > offset) return end - offset;
        return 0;
    }
};
const Ends kOneChunk{{UINT64_MAX}};

struct Cut {
    std::vector<Fragment> fragments;
    uint64_t done = 0;
};

Cut cut(uint64_t length, const Ends& local, const Ends& remote, const SplitLimits& limits = {}) {
    Cut result;
    result.done = split(length, limits, local, remote, [&](Fragment fragment) { result.fragments.push_back(fragment); });
    return result;
}

std::vector<uint64_t> lengths(const Cut& cut) {
    std::vector<uint64_t> all;
    for (const Fragment& fragment : cut.fragments) all.push_back(fragment.length);
    return all;
}

TEST(FabricSplit, LeavesASmallRequestWhole) {
    EXPECT_THAT(lengths(cut(1, kOneChunk, kOneChunk)), ElementsAre(1));
    EXPECT_THAT(lengths(cut(kMiB, kOneChunk, kOneChunk)), ElementsAre(kMiB));
    EXPECT_THAT(lengths(cut(2 * kMiB - 1, kOneChunk, kOneChunk)), ElementsAre(2 * kMiB - 1));
}

TEST(FabricSplit, CutsStripesAndLeavesNoSmallRest) {
    EXPECT_THAT(lengths(cut(2 * kMiB, kOneChunk, kOneChunk)), ElementsAre(kMiB, kMiB));
    EXPECT_THAT(lengths(cut(3 * kMiB + 1, kOneChunk, kOneChunk)), ElementsAre(kMiB, kMiB, kMiB + 1));
}

TEST(FabricSplit, CutsNothingOfNothing) {
    const Cut none = cut(0, kOneChunk, kOneChunk);
    EXPECT_TRUE(none.fragments.empty());
    EXPECT_EQ(none.done, 0u);
}

TEST(FabricSplit, CutsWhereChunksEnd) {
    EXPECT_THAT(lengths(cut(100, Ends{{30, 200}}, kOneChunk)), ElementsAre(30, 70));
    EXPECT_THAT(lengths(cut(100, kOneChunk, Ends{{99, 200}})), ElementsAre(99, 1));
    EXPECT_THAT(lengths(cut(100, Ends{{30, 200}}, Ends{{50, 200}})), ElementsAre(30, 20, 50));
    EXPECT_THAT(lengths(cut(100, Ends{{50, 100}}, Ends{{50, 100}})), ElementsAre(50, 50));
}

TEST(FabricSplit, KeepsToTheLargestOperation) {
    EXPECT_THAT(lengths(cut(10, kOneChunk, kOneChunk, {.operation_bytes_max = 4, .stripe_bytes = 100})), ElementsAre(4, 4, 2));
    EXPECT_THAT(lengths(cut(10, kOneChunk, kOneChunk, {.operation_bytes_max = 4, .stripe_bytes = 5})), ElementsAre(4, 4, 2));
}

TEST(FabricSplit, StopsWhereAChunkIsMissing) {
    const Cut local = cut(100, Ends{{40}}, kOneChunk);
    EXPECT_THAT(lengths(local), ElementsAre(40));
    EXPECT_EQ(local.done, 40u);
    EXPECT_EQ(cut(100, kOneChunk, Ends{}).done, 0u);
}

TEST(FabricSplit, TakesLengthsNearTheEndOfNumbers) {
    const Cut huge = cut(UINT64_MAX, kOneChunk, kOneChunk, {.operation_bytes_max = UINT64_MAX, .stripe_bytes = UINT64_MAX / 2});
    EXPECT_EQ(huge.done, UINT64_MAX);
    EXPECT_LE(huge.fragments.size(), 3u);
}

TEST(FabricSplit, TilesEveryRequestExactly) {
    std::mt19937_64 random(7);
    const auto upto = [&](uint64_t max) { return 1 + random() % max; };
    for (int round = 0; round < 2000; ++round) {
        const uint64_t length = upto(100'000);
        Ends local, remote;
        for (uint64_t end = 0; end < length;) local.ends.push_back(end += upto(length));
        for (uint64_t end = 0; end < length;) remote.ends.push_back(end += upto(length));
        const SplitLimits limits{.operation_bytes_max = 64 + upto(20'000), .stripe_bytes = 64 + upto(20'000)};
        const Cut result = cut(length, local, remote, limits);
        ASSERT_EQ(result.done, length);
        uint64_t offset = 0;
        for (const Fragment& fragment : result.fragments) {
            ASSERT_EQ(fragment.offset, offset);
            ASSERT_GT(fragment.length, 0u);
            ASSERT_LE(fragment.length, limits.operation_bytes_max);
            ASSERT_LT(fragment.length, 2 * limits.stripe_bytes);
            ASSERT_LE(fragment.length, local(offset));
            ASSERT_LE(fragment.length, remote(offset));
            offset += fragment.length;
        }
        ASSERT_EQ(offset, length);
    }
}

}  // namespace
}  // namespace mooncake::fabric
