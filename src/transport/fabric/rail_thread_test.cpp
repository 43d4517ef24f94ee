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

}  // namespace
}  // namespace mooncake::fabric
