// SPDX-License-Identifier: Apache-2.0
#include "engine/buddy.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

namespace mooncake {
namespace {

constexpr uint64_t kKiB = 1 << 10, kMiB = 1 << 20;
constexpr uint64_t kBase = 0x7f00'0000'3000;  // chunks need not be aligned to their size

TEST(Buddy, RoundsUpToPowersOfTwoFrom8KiBTo256MiB) {
    EXPECT_EQ(Buddy::block_size(0), 0u);
    EXPECT_EQ(Buddy::block_size(1), 8 * kKiB);
    EXPECT_EQ(Buddy::block_size(8 * kKiB), 8 * kKiB);
    EXPECT_EQ(Buddy::block_size(8 * kKiB + 1), 16 * kKiB);
    EXPECT_EQ(Buddy::block_size(256 * kMiB), 256 * kMiB);
    EXPECT_EQ(Buddy::block_size(256 * kMiB + 1), 0u);
}

TEST(Buddy, HasNothingWithoutAChunk) {
    Buddy buddy;
    EXPECT_FALSE(buddy.allocate(1));
}

TEST(Buddy, GivesLowAddressesFirst) {
    Buddy buddy;
    buddy.add_chunk(kBase, 2 * kMiB);
    EXPECT_EQ(buddy.allocate(8 * kKiB), kBase);
    EXPECT_EQ(buddy.allocate(8 * kKiB), kBase + 8 * kKiB);
    EXPECT_EQ(buddy.allocate(kMiB), kBase + kMiB);
}

TEST(Buddy, MergesFreedNeighboursBackIntoTheWholeChunk) {
    Buddy buddy;
    buddy.add_chunk(kBase, kMiB);
    std::vector<uint64_t> blocks;
    while (const auto block = buddy.allocate(8 * kKiB)) blocks.push_back(*block);
    EXPECT_EQ(blocks.size(), 128u);
    std::shuffle(blocks.begin(), blocks.end(), std::mt19937(7));
    for (const uint64_t block : blocks) EXPECT_TRUE(buddy.free(block, 8 * kKiB));
    EXPECT_EQ(buddy.allocated_bytes(), 0u);
    EXPECT_EQ(buddy.allocate(kMiB), kBase);
}

TEST(Buddy, UsesAChunkWhoseLengthIsNoPowerOfTwo) {
    Buddy buddy;
    buddy.add_chunk(kBase, 24 * kKiB);
    EXPECT_EQ(buddy.allocate(16 * kKiB), kBase);
    EXPECT_EQ(buddy.allocate(8 * kKiB), kBase + 16 * kKiB);
    EXPECT_FALSE(buddy.allocate(1));
    EXPECT_TRUE(buddy.free(kBase + 16 * kKiB, 8 * kKiB));  // its neighbour would lie outside
    EXPECT_TRUE(buddy.free(kBase, 16 * kKiB));
    EXPECT_FALSE(buddy.allocate(32 * kKiB));
}

TEST(Buddy, RefusesToFreeTwiceOrElsewhereOrAnotherSize) {
    Buddy buddy;
    buddy.add_chunk(kBase, kMiB);
    const uint64_t block = *buddy.allocate(10 * kKiB);
    EXPECT_EQ(buddy.free(block + 8 * kKiB, 8 * kKiB).error().code(), Code::kNotRegistered);
    EXPECT_EQ(buddy.free(block, 8 * kKiB).error().code(), Code::kInvalidArgument);
    EXPECT_EQ(buddy.free(block, 0).error().code(), Code::kInvalidArgument);
    EXPECT_TRUE(buddy.free(block, 16 * kKiB));  // the same class as asked for
    EXPECT_EQ(buddy.free(block, 16 * kKiB).error().code(), Code::kNotRegistered);
}

TEST(Buddy, NeverGivesOneByteTwice) {
    Buddy buddy;
    buddy.add_chunk(kBase, 4 * kMiB);
    buddy.add_chunk(kBase + 64 * kMiB, 3 * kMiB + 24 * kKiB);
    std::map<uint64_t, uint64_t> live;  // address -> requested length
    std::mt19937 random(42);
    for (int step = 0; step < 20'000; ++step) {
        const uint64_t length = 1 + random() % (300 * kKiB);
        if (random() % 2 == 0) {
            if (const auto block = buddy.allocate(length)) {
                const auto next = live.lower_bound(*block);
                ASSERT_TRUE(next == live.end() || *block + Buddy::block_size(length) <= next->first);
                ASSERT_TRUE(next == live.begin() || std::prev(next)->first + Buddy::block_size(std::prev(next)->second) <= *block);
                live.emplace(*block, length);
            }
        } else if (!live.empty()) {
            const auto victim = std::next(live.begin(), static_cast<long>(random() % live.size()));
            ASSERT_TRUE(buddy.free(victim->first, victim->second));
            live.erase(victim);
        }
    }
    for (const auto& [address, length] : live) ASSERT_TRUE(buddy.free(address, length));
    EXPECT_EQ(buddy.allocated_bytes(), 0u);
    EXPECT_EQ(buddy.allocate(4 * kMiB), kBase);
}

}  // namespace
}  // namespace mooncake
