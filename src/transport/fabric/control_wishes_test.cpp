// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/control_wishes.h"

#include <gtest/gtest.h>

namespace mooncake::fabric {
namespace {

constexpr Time kStart{1h};

TEST(ControlWishes, AreSeenToByOneTaskAtATime) {
    ControlWishes wishes;
    EXPECT_FALSE(wishes.begin(kStart)) << "there are none";
    wishes.look();
    EXPECT_TRUE(wishes.begin(kStart));
    wishes.keys({.address = 1, .length = 2});
    EXPECT_FALSE(wishes.begin(kStart)) << "somebody is at it";
    EXPECT_TRUE(wishes.asking());
    const Wishes first = wishes.take(kStart);
    EXPECT_TRUE(first.look);
    EXPECT_EQ(first.ranges.size(), 1u);
    wishes.announce();
    wishes.fence(3, 4);
    EXPECT_FALSE(wishes.begin(kStart));
    const Wishes second = wishes.take(kStart);
    EXPECT_TRUE(second.announce && !second.look);
    EXPECT_EQ(second.fences, (Doubts{{3, 4}}));
    EXPECT_TRUE(wishes.take(kStart).empty());
    EXPECT_FALSE(wishes.asking());
    wishes.look();
    EXPECT_TRUE(wishes.begin(kStart)) << "the next task";
}

TEST(ControlWishes, ComeAgainWithoutAnAnswer) {
    ControlWishes wishes;
    wishes.look();
    wishes.keys({.address = 1, .length = 2});
    ASSERT_TRUE(wishes.begin(kStart));
    const Wishes unanswered = wishes.take(kStart);
    wishes.keys({.address = 5, .length = 6});
    wishes.again(unanswered);
    const Wishes all = wishes.take(kStart);
    EXPECT_TRUE(all.look);
    EXPECT_EQ(all.ranges.size(), 2u);
}

TEST(ControlWishes, ATargetIsSilentSinceTheFirstQuestionAfterItsLastAnswer) {
    ControlWishes wishes;
    EXPECT_FALSE(wishes.is_silent(kStart, 0s)) << "nobody asked";
    wishes.look();
    ASSERT_TRUE(wishes.begin(kStart));
    EXPECT_FALSE(wishes.is_silent(kStart + 4s, 5s));
    const Wishes asked = wishes.take(kStart + 1s);
    wishes.again(asked);
    (void)wishes.take(kStart + 3s);
    EXPECT_TRUE(wishes.is_silent(kStart + 5s, 5s));
    wishes.answered();
    EXPECT_FALSE(wishes.is_silent(kStart + 5s, 5s));
    wishes.look();
    (void)wishes.take(kStart + 6s);
    EXPECT_FALSE(wishes.is_silent(kStart + 10s, 5s));
    EXPECT_TRUE(wishes.is_silent(kStart + 11s, 5s));
    (void)wishes.take(kStart + 12s);
    EXPECT_FALSE(wishes.is_silent(kStart + 20s, 5s)) << "nothing is asked any more";
}

}  // namespace
}  // namespace mooncake::fabric
