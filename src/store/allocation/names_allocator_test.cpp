// SPDX-License-Identifier: Apache-2.0
// A RangeAllocator that counts: see Places::kNames.
#include <gtest/gtest.h>

#include "store/allocation/range_allocator.h"

namespace mooncake::store {
namespace {

using Block = RangeAllocator::Block;

class NamesAllocator : public testing::Test {
protected:
    Block allocate(uint64_t length, uint64_t owner = 1) {
        const auto name = disk_.find(length);
        return name ? disk_.take(*name, length, owner) : 0;
    }
    RangeAllocator disk_{1000, 64, RangeAllocator::Places::kNames};
};

TEST_F(NamesAllocator, GivesEveryNameOutOnceWhateverIsFreed) {
    std::vector<uint64_t> names;
    for (int i = 0; i < 100; ++i) {
        const Block block = allocate(300);
        ASSERT_NE(block, 0u);
        for (const uint64_t other : names) ASSERT_NE(disk_.offset(block), other);
        names.push_back(disk_.offset(block));
        disk_.free(block);
    }
    EXPECT_EQ(disk_.used_bytes(), 0u);
    EXPECT_TRUE(disk_.consistent());
}

TEST_F(NamesAllocator, IsNeverFullForWantOfAHole) {
    const Block first = allocate(300), second = allocate(300), third = allocate(300);
    disk_.free(second);
    EXPECT_TRUE(disk_.find(600)) << "free bytes are not in one piece, which does not matter";
    EXPECT_EQ(disk_.used_bytes(), 640u);
    EXPECT_EQ(disk_.free_bytes(), 320u);
    EXPECT_EQ(disk_.used_blocks(), 2u);
    disk_.free(first);
    disk_.free(third);
    EXPECT_TRUE(disk_.consistent());
    EXPECT_EQ(disk_.first(), 0u);
}

TEST_F(NamesAllocator, TakesWhatItsOwnerSaysAlsoTwiceTheSamePlaceAndMoreThanItHas) {
    const Block one = disk_.take(77, 900, 1), two = disk_.take(77, 900, 2);
    ASSERT_NE(one, 0u);
    ASSERT_NE(two, 0u);
    EXPECT_EQ(disk_.owner(two), 2u);
    EXPECT_EQ(disk_.used_bytes(), 1920u);
    EXPECT_EQ(disk_.free_bytes(), 0u);
    EXPECT_GE(disk_.find(64).value(), 77u + 900u);
    EXPECT_FALSE(disk_.find(1001)) << "what is longer than the disk can never lie there";
    EXPECT_TRUE(disk_.consistent());
    disk_.free(one);
    disk_.free(two);
    EXPECT_EQ(disk_.free_bytes(), 960u);
}

TEST_F(NamesAllocator, RefusesNothingAndNonsense) {
    EXPECT_EQ(disk_.take(0, 0, 1), 0u);
    EXPECT_EQ(disk_.take(uint64_t{1} << 62, 64, 1), 0u);
    EXPECT_EQ(disk_.take(0, uint64_t{1} << 62, 1), 0u);
    EXPECT_FALSE(disk_.find(0));
    EXPECT_EQ(disk_.long_free_block(), 0u);
}

}  // namespace
}  // namespace mooncake::store
