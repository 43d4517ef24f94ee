// SPDX-License-Identifier: Apache-2.0
#include "base/time.h"

#include <gtest/gtest.h>

namespace mooncake {
namespace {

TEST(Deadline, NeverNeverPasses) {
    const Deadline never = Deadline::never();
    EXPECT_TRUE(never.is_never());
    EXPECT_FALSE(never.passed());
    EXPECT_EQ(never.left(), Duration::max());
    EXPECT_EQ(never.left_ms(250), 250);
}

TEST(Deadline, AVeryLongTimeIsNeverInsteadOfOverflowing) {
    EXPECT_TRUE(Deadline::after(Duration::max()).is_never());
    EXPECT_TRUE(Deadline::after(Duration::max() - 1ns).is_never());
    EXPECT_FALSE(Deadline::after(std::chrono::hours(24 * 365)).is_never());
}

TEST(Deadline, NegativeAndZeroTimesHavePassed) {
    for (const Duration duration : {Duration(0), Duration(-1s), Duration::min()}) {
        const Deadline deadline = Deadline::after(duration);
        EXPECT_TRUE(deadline.passed());
        EXPECT_EQ(deadline.left(), Duration::zero());
        EXPECT_EQ(deadline.left_ms(), 0);
    }
}

TEST(Deadline, CountsWhatIsLeft) {
    const Deadline deadline = Deadline::after(1h);
    EXPECT_FALSE(deadline.passed());
    EXPECT_GT(deadline.left(), 59min);
    EXPECT_LE(deadline.left(), 1h);
}

TEST(Deadline, RoundsMillisecondsUpSoThatNobodySpinsBeforeTheEnd) {
    // Half an hour and a bit: the exact rest is never a whole number of milliseconds for long.
    const Deadline deadline(Clock::now() + 30min + 1us);
    EXPECT_LE(deadline.left(), std::chrono::milliseconds(deadline.left_ms(10'000'000)) + 1ms);
    const Deadline soon(Clock::now() + 1h);
    EXPECT_GE(std::chrono::milliseconds(soon.left_ms(10'000'000)), soon.left());
    EXPECT_EQ(soon.left_ms(), 1'000'000);
}

TEST(Deadline, EarlierPicksTheEarlier) {
    const Deadline soon = Deadline::after(1s), late = Deadline::after(1h);
    EXPECT_EQ(soon.earlier(late).at(), soon.at());
    EXPECT_EQ(late.earlier(soon).at(), soon.at());
    EXPECT_EQ(Deadline::never().earlier(late).at(), late.at());
    EXPECT_TRUE(Deadline::never().earlier(Deadline::never()).is_never());
}

}  // namespace
}  // namespace mooncake
