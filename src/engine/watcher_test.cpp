// SPDX-License-Identifier: Apache-2.0
#include "engine/watcher.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <memory>

namespace mooncake {
namespace {

TEST(Watcher, LooksUntilItIsToldOtherwise) {
    Watcher watcher("watch");
    std::atomic<int> looks{0};
    std::latch done(1);
    ASSERT_TRUE(watcher.add([&] {
        if (++looks < 5) return true;
        done.count_down();
        return false;
    }));
    done.wait();
    watcher.stop();
    EXPECT_EQ(looks, 5);
}

TEST(Watcher, LooksAtSeveralThingsAtOnce) {
    Watcher watcher("watch");
    std::atomic<bool> first{false};
    std::latch done(2);
    ASSERT_TRUE(watcher.add([&] {
        if (!first) return true;
        done.count_down();
        return false;
    }));
    ASSERT_TRUE(watcher.add([&] {
        first = true;
        done.count_down();
        return false;
    }));
    done.wait();
}

TEST(Watcher, ALookMayAddAnother) {
    Watcher watcher("watch");
    std::latch done(1);
    ASSERT_TRUE(watcher.add([&] {
        EXPECT_TRUE(watcher.add([&] {
            done.count_down();
            return false;
        }));
        return false;
    }));
    done.wait();
}

TEST(Watcher, LetsGoOfEverythingWhenItStops) {
    Watcher watcher("watch");
    const auto held = std::make_shared<std::atomic<int>>(0);
    ASSERT_TRUE(watcher.add([held] { return ++*held > 0; }));
    while (*held == 0) std::this_thread::yield();
    watcher.stop();
    EXPECT_EQ(held.use_count(), 1);
    EXPECT_FALSE(watcher.add([] { return false; }));
    watcher.stop();
}

}  // namespace
}  // namespace mooncake
