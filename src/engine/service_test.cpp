// SPDX-License-Identifier: Apache-2.0
#include "engine/service.h"

#include <gtest/gtest.h>

#include <latch>

namespace mooncake {
namespace {

TEST(Service, RunsWhatIsPosted) {
    Service service;
    std::latch done(100);
    for (int i = 0; i < 100; ++i) EXPECT_TRUE(service.post([&] { done.count_down(); }));
    done.wait();
}

TEST(Service, AStuckTaskDoesNotStopTheOthers) {
    Service service(2);
    std::latch stuck(1), done(10);
    service.post([&] { stuck.wait(); });
    for (int i = 0; i < 10; ++i) service.post([&] { done.count_down(); });
    done.wait();
    stuck.count_down();
}

TEST(Service, TimersRunInOrderAndNotBeforeTheirTime) {
    Service service(1);
    std::vector<int> order;
    std::latch done(3);
    const Time start = Clock::now();
    service.at(start + 30ms, [&] {
        order.push_back(3);
        done.count_down();
    });
    service.at(start + 10ms, [&] {
        order.push_back(1);
        done.count_down();
    });
    service.at(start + 20ms, [&] {
        order.push_back(2);
        done.count_down();
    });
    done.wait();
    EXPECT_GE(Clock::now(), start + 30ms);
    EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
}

TEST(Service, AnEarlierTimerWakesAThreadThatWaitsForALaterOne) {
    Service service(1);
    std::latch done(1);
    service.at(Clock::now() + 1h, [] {});
    service.post([&] { service.at(Clock::now() + 1ms, [&] { done.count_down(); }); });
    done.wait();
}

TEST(Service, ACancelledTimerNeverRuns) {
    Service service(1);
    bool ran = false;
    const auto timer = service.at(Clock::now() + 1h, [&] { ran = true; });
    EXPECT_TRUE(service.cancel(timer));
    EXPECT_FALSE(service.cancel(timer));
    EXPECT_FALSE(service.cancel(12345));
    service.stop();
    EXPECT_FALSE(ran);
}

TEST(Service, StopDropsWhatWaitsAndRefusesMore) {
    Service service(1);
    auto owned = std::make_shared<int>(1);
    service.at(Clock::now() + 1h, [owned] {});
    service.stop();
    EXPECT_EQ(owned.use_count(), 1);
    EXPECT_FALSE(service.post([] {}));
    EXPECT_EQ(service.at(Clock::now(), [] {}), 0u);
    service.stop();
}

}  // namespace
}  // namespace mooncake
