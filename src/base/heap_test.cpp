// SPDX-License-Identifier: Apache-2.0
#include "base/heap.h"

#include <gtest/gtest.h>

namespace mooncake {
namespace {

TEST(ShrinkWatch, SaysOnceThatMostHaveGone) {
    ShrinkWatch watch(100);
    EXPECT_FALSE(watch.shrunk(1000));
    EXPECT_FALSE(watch.shrunk(501)) << "not half of them";
    EXPECT_TRUE(watch.shrunk(500));
    EXPECT_FALSE(watch.shrunk(500));
    EXPECT_FALSE(watch.shrunk(400));
    EXPECT_TRUE(watch.shrunk(0));
    EXPECT_FALSE(watch.shrunk(0));
}

TEST(ShrinkWatch, DoesNotBotherForAFew) {
    ShrinkWatch watch(100);
    for (int i = 0; i < 10; ++i) {
        EXPECT_FALSE(watch.shrunk(99));
        EXPECT_FALSE(watch.shrunk(0));
    }
}

TEST(Heap, CountsHowOftenMemoryWasReturned) {
    const uint64_t before = free_memory_returns();
    return_free_memory();
    EXPECT_EQ(free_memory_returns(), before + 1);
}

}  // namespace
}  // namespace mooncake
