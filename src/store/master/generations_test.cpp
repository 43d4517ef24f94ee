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

TEST(Generations, ThatNoClockCanHaveGivenOutAreNotCredible) {
    const uint64_t today = uint64_t{56} * 365 * 24 * 3600 * 1'000'000'000;
    Generations generations(today);
    EXPECT_TRUE(generations.credible(1));
    EXPECT_TRUE(generations.credible(today + Generations::kAheadMax / 2)) << "the clock was wrong, and was set right since";
    EXPECT_FALSE(generations.credible(0));
    EXPECT_FALSE(generations.credible(today + Generations::kAheadMax));
    EXPECT_FALSE(generations.credible(Generations::kEnd - 1));
    generations.seen(today + Generations::kAheadMax - 1);
    EXPECT_TRUE(generations.newer(generations.take(), today + Generations::kAheadMax - 1));
    EXPECT_TRUE(Generations(today + 1'000'000).credible(generations.take())) << "to the next life";
}

}  // namespace
}  // namespace mooncake::store
