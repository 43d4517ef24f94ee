// SPDX-License-Identifier: Apache-2.0
#include "store/client/registered_buffers.h"

#include <gtest/gtest.h>

#include <array>

namespace mooncake::store {

namespace {

class RegisteredBuffersTest : public ::testing::Test {
protected:
    /// The start and length of what is around an offset; {-1, 0}: nothing.
    std::pair<int64_t, uint64_t> around(size_t offset) const {
        const auto range = buffers_.find(memory_.data() + offset);
        return range ? std::pair(range->first - memory_.data(), range->second) : std::pair(int64_t{-1}, uint64_t{0});
    }
    std::byte* at(size_t offset) { return memory_.data() + offset; }

    using Pair = std::pair<int64_t, uint64_t>;
    std::array<std::byte, 1000> memory_;
    RegisteredBuffers buffers_;
};

TEST_F(RegisteredBuffersTest, TellsWhatLiesAroundAnAddress) {
    buffers_.add(at(100), 50);
    buffers_.add(at(150), 10);
    EXPECT_EQ(around(99), Pair(-1, 0));
    EXPECT_EQ(around(100), Pair(100, 50));
    EXPECT_EQ(around(149), Pair(100, 50));
    EXPECT_EQ(around(150), Pair(150, 10));
    EXPECT_EQ(around(160), Pair(-1, 0));
}

TEST_F(RegisteredBuffersTest, RangeIsThereUntilItWasRemovedAsOftenAsAdded) {
    buffers_.add(at(100), 50);
    buffers_.add(at(100), 50);
    EXPECT_FALSE(buffers_.remove(at(101)));
    EXPECT_TRUE(buffers_.remove(at(100)));
    EXPECT_EQ(around(120), Pair(100, 50));
    EXPECT_TRUE(buffers_.remove(at(100)));
    EXPECT_EQ(around(120), Pair(-1, 0));
    EXPECT_FALSE(buffers_.remove(at(100)));
}

TEST_F(RegisteredBuffersTest, MemoryThatIsGoneIsNotFound) {
    auto* const nowhere = reinterpret_cast<std::byte*>(0x1000);
    buffers_.add(nowhere, 100);
    buffers_.add(at(0), 100);
    const Time now = Clock::now();
    EXPECT_TRUE(buffers_.find(nowhere));
    EXPECT_FALSE(buffers_.find_mapped(nowhere, now));
    EXPECT_FALSE(buffers_.find_mapped(nowhere, now)) << "asked again";
    EXPECT_TRUE(buffers_.find_mapped(at(99), now));
    EXPECT_FALSE(buffers_.find_mapped(at(100), now));
}

TEST_F(RegisteredBuffersTest, RangesInsideOthersHideNothingOfThem) {
    buffers_.add(at(120), 10);
    buffers_.add(at(100), 100);
    buffers_.add(at(150), 10);
    for (const size_t offset : {100, 125, 140, 155, 199}) EXPECT_EQ(around(offset), Pair(100, 100)) << offset;
    EXPECT_TRUE(buffers_.remove(at(100)));
    EXPECT_EQ(around(125), Pair(120, 10));
    EXPECT_EQ(around(155), Pair(150, 10));
    EXPECT_EQ(around(140), Pair(-1, 0));
    EXPECT_TRUE(buffers_.remove(at(120)));
    EXPECT_EQ(around(125), Pair(-1, 0));
}

}  // namespace

}  // namespace mooncake::store
