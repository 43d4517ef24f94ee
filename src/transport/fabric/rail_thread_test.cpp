// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/rail_thread.h"

#include <gtest/gtest.h>

namespace mooncake::fabric {
namespace {

TEST(Alertness, DoesNotPollInAQuietProcess) {
    Alertness alertness(std::nullopt);
    EXPECT_EQ(alertness.budget(), 0us);
    for (int i = 0; i < 100; ++i) {
        alertness.woken(Alertness::kShortSleep + 1us);
        EXPECT_EQ(alertness.budget(), 0us);
    }
}

TEST(Alertness, PollsLongerTheLongerSleepsAreTooShort) {
    Alertness alertness(std::nullopt);
    Duration polled{};
    for (int i = 0; i < 20; ++i) {
        const Duration before = alertness.budget();
        alertness.woken(10us);
        EXPECT_GE(alertness.budget(), before);
        // In vain at most about as long as there was something to do.
        EXPECT_LE(alertness.budget(), polled + Alertness::kBudgetMin);
        polled += alertness.budget();
    }
    EXPECT_EQ(alertness.budget(), Alertness::kBudgetMax);
}

TEST(Alertness, SleepsAtOnceWhenTrafficEndsOrOthersWantTheCore) {
    Alertness alertness(std::nullopt);
    alertness.woken(10us);
    alertness.woken(10us);
    EXPECT_GT(alertness.budget(), Alertness::kBudgetMin);
    alertness.woken(1ms);
    EXPECT_EQ(alertness.budget(), 0us);
    alertness.woken(10us);
    EXPECT_EQ(alertness.budget(), Alertness::kBudgetMin);
    alertness.crowded();
    EXPECT_EQ(alertness.budget(), 0us);
}

TEST(Alertness, PollsAFixedTimeWhenToldSo) {
    Alertness alertness(30us);
    EXPECT_EQ(alertness.budget(), 30us);
    alertness.woken(10us);
    alertness.crowded();
    EXPECT_EQ(alertness.budget(), 30us);
}

class FutilityTest : public ::testing::Test {
protected:
    /// Short sleeps that end for nothing, for that long.
    void wake_in_vain(Duration time) {
        for (const Time end = now + time; now < end; now += 1ms) futility.in_vain(now, 10us);
    }

    Futility futility;
    Time now = Time(1h);
};

TEST_F(FutilityTest, DozesOnceNothingComesAlthoughDescriptorsSaySo) {
    wake_in_vain(Futility::kSuspicious);
    ASSERT_TRUE(futility.wants_to_know(now));
    futility.told(now, 1000);
    EXPECT_FALSE(futility.dozing()) << "nothing to compare it with";
    EXPECT_FALSE(futility.wants_to_know(now)) << "not all the time";
    wake_in_vain(Futility::kAskEvery);
    ASSERT_TRUE(futility.wants_to_know(now));
    futility.told(now, 1000);
    EXPECT_TRUE(futility.dozing());
    now += Futility::kAskEvery;
    ASSERT_TRUE(futility.wants_to_know(now)) << "also without any wake";
    futility.told(now, 1001);
    EXPECT_FALSE(futility.dozing());
}

TEST_F(FutilityTest, IsEndedByWhateverIsFound) {
    wake_in_vain(Futility::kSuspicious);
    futility.told(now, 1000);
    futility.told(now, 1000);
    ASSERT_TRUE(futility.dozing());
    futility.found();
    EXPECT_FALSE(futility.dozing());
    EXPECT_FALSE(futility.wants_to_know(now + 1h));
}

TEST_F(FutilityTest, DoesNotSuspectThoseWhoServe) {
    uint64_t received = 0;
    for (int i = 0; i < 100; ++i) {
        wake_in_vain(Futility::kAskEvery);
        if (futility.wants_to_know(now)) futility.told(now, received += 4096);
        EXPECT_FALSE(futility.dozing());
    }
}

TEST_F(FutilityTest, DoesNotSuspectLongSleepsOrWhatNobodyKnows) {
    for (int i = 0; i < 1000; ++i, now += 1ms) futility.in_vain(now, Alertness::kShortSleep + 1us);
    EXPECT_FALSE(futility.wants_to_know(now));
    wake_in_vain(Futility::kSuspicious);
    futility.told(now, std::nullopt);
    futility.told(now, std::nullopt);
    EXPECT_FALSE(futility.dozing());
}

}  // namespace
}  // namespace mooncake::fabric
