// SPDX-License-Identifier: Apache-2.0
#include "store/master/generations.h"

#include <gtest/gtest.h>

namespace mooncake::store {
namespace {

TEST(Generations, GrowAndGoOnAboveWhatIsReported) {
    Generations generations(100);
    EXPECT_EQ(generations.take(), 100u);
    generations.seen(50);
    EXPECT_EQ(generations.take(), 101u);
    generations.seen(500);
    EXPECT_EQ(generations.take(), 501u);
}

TEST(Generations, KnowTheirOwn) {
    Generations generations(100);
    generations.take();
    generations.seen(500);
    generations.seen(700);
    generations.take();
    for (const uint64_t own : {100, 701}) EXPECT_TRUE(generations.is_own(own)) << own;
    for (const uint64_t foreign : {99, 101, 500, 600, 700, 702}) EXPECT_FALSE(generations.is_own(foreign)) << foreign;
}

TEST(Generations, OfThisLifeAreNewerThanAllOthers) {
    Generations generations(100);
    generations.take();
    EXPECT_TRUE(generations.newer(100, 99));
    EXPECT_TRUE(generations.newer(100, 5000)) << "the clock was set back";
    EXPECT_FALSE(generations.newer(5000, 100));
    EXPECT_TRUE(generations.newer(5001, 5000));
    EXPECT_FALSE(generations.newer(100, 100));
}

}  // namespace
}  // namespace mooncake::store
