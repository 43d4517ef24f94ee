// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/alarm.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace mooncake::shm {
namespace {

TEST(ShmAlarm, RingsOnceForEachTimeItIsSet) {
    const auto loop = Loop::create().value();
    std::atomic<int> rang{0};
    Alarm alarm(*loop, [&] { ++rang; });
    for (int round = 1; round <= 3; ++round) {
        ASSERT_TRUE(alarm.set(1ms));
        for (const Deadline end = Deadline::after(30s); rang.load() < round && !end.passed();) std::this_thread::yield();
        EXPECT_EQ(rang.load(), round);
    }
}

TEST(ShmAlarm, MayBeSetByWhatRings) {
    const auto loop = Loop::create().value();
    std::atomic<int> rang{0};
    std::unique_ptr<Alarm> alarm;
    alarm = std::make_unique<Alarm>(*loop, [&] {
        if (++rang < 5) {
            EXPECT_TRUE(alarm->set(0ms));
        }
    });
    ASSERT_TRUE(alarm->set(0ms));
    for (const Deadline end = Deadline::after(30s); rang.load() < 5 && !end.passed();) std::this_thread::yield();
    EXPECT_EQ(rang.load(), 5);
}

TEST(ShmAlarm, DoesNotRingAfterItsEnd) {
    const auto loop = Loop::create().value();
    std::atomic<bool> over{false};
    for (int round = 0; round < 50; ++round) {
        over = false;
        {
            Alarm alarm(*loop, [&] { EXPECT_FALSE(over.load()); });
            ASSERT_TRUE(alarm.set(0ms));
            if (round % 2 == 0) std::this_thread::yield();
        }
        over = true;
    }
}

}  // namespace
}  // namespace mooncake::shm
