// SPDX-License-Identifier: Apache-2.0
#include "base/timer_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <memory>
#include <new>
#include <thread>
#include <vector>

namespace mooncake {
namespace {

TEST(TimerQueue, TimersRunInOrderAndNotBeforeTheirTime) {
    std::vector<int> order;
    std::latch done(3);
    TimerQueue timers("test");
    const Time start = Clock::now();
    for (const int at : {3, 1, 2}) {
        ASSERT_NE(timers.at(start + at * 10ms,
                            [&, at] {
                                order.push_back(at);
                                done.count_down();
                            }),
                  0u);
    }
    done.wait();
    EXPECT_GE(Clock::now(), start + 30ms);
    EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
}

TEST(TimerQueue, AnEarlierTimerWakesAThreadThatWaitsForALaterOne) {
    std::latch done(1);
    TimerQueue timers("test");
    timers.at(Clock::now() + 1h, [] {});
    timers.at(Clock::now(), [&] { timers.at(Clock::now() + 1ms, [&] { done.count_down(); }); });
    done.wait();
}

TEST(TimerQueue, ACancelledTimerNeverRuns) {
    TimerQueue timers("test");
    bool ran = false;
    const auto timer = timers.at(Clock::now() + 1h, [&] { ran = true; });
    EXPECT_TRUE(timers.cancel(timer));
    EXPECT_FALSE(timers.cancel(timer));
    EXPECT_FALSE(timers.cancel(12345));
    timers.stop();
    EXPECT_FALSE(ran);
}

TEST(TimerQueue, OneThatRepeatsGoesOnAlsoWhereATaskFindsNoMemory) {
    std::latch done(3), cancelled(1);
    TimerQueue timers("test");
    int runs = 0;
    const auto timer = timers.every(1ms, [&] {
        if (++runs <= 3) done.count_down();
        throw std::bad_alloc();
    });
    ASSERT_NE(timer, 0u);
    done.wait();
    timers.cancel(timer);
    EXPECT_FALSE(timers.cancel(timer));
    timers.at(Clock::now() + 5ms, [&] { cancelled.count_down(); });
    cancelled.wait();
    const int before = runs;
    std::latch later(1);
    timers.at(Clock::now() + 5ms, [&] { later.count_down(); });
    later.wait();
    EXPECT_EQ(runs, before) << "a cancelled one ran";
    timers.stop();
    EXPECT_EQ(timers.every(1ms, [] {}), 0u);
}

TEST(TimerQueue, OneThatRepeatsMayCancelItself) {
    TimerQueue timers("test");
    std::latch ran(1), later(1);
    std::atomic<TimerQueue::TimerId> own{0};
    std::atomic<int> runs{0};
    own = timers.every(1ms, [&] {
        while (own == 0) std::this_thread::yield();
        timers.cancel(own);
        if (++runs == 1) ran.count_down();
    });
    ran.wait();
    timers.at(Clock::now() + 5ms, [&] { later.count_down(); });
    later.wait();
    EXPECT_EQ(runs, 1);
}

TEST(TimerQueue, StopDropsWhatWaitsAndRefusesMore) {
    TimerQueue timers("test");
    auto owned = std::make_shared<int>(1);
    timers.at(Clock::now() + 1h, [owned] {});
    timers.stop();
    EXPECT_EQ(owned.use_count(), 1);
    EXPECT_EQ(timers.at(Clock::now(), [] {}), 0u);
    EXPECT_EQ(timers.start().error().code(), Code::kUnavailable);
    timers.stop();
}

}  // namespace
}  // namespace mooncake
