// SPDX-License-Identifier: Apache-2.0
#include "engine/service.h"

#include <gtest/gtest.h>

#include <latch>

namespace mooncake {
namespace {

TEST(Service, NeitherTimersNorStopsWaitForWorkThatWaitsForPeers) {
    std::latch silent(1), stopped(1), rung(1);
    Service service;
    ASSERT_TRUE(service.start());
    for (size_t peer = 1; peer <= 2 * Service::kThreadsMax; ++peer) ASSERT_TRUE(service.post([&] { silent.wait(); }, peer));
    ASSERT_TRUE(service.post_stop([&] { stopped.count_down(); }, 1));
    ASSERT_NE(service.at(Clock::now(), [&] { rung.count_down(); }), 0u);
    stopped.wait();
    rung.wait();
    silent.count_down();
}

TEST(Service, PostsAtATime) {
    std::latch done(1);
    Service service;
    const Time start = Clock::now();
    ASSERT_TRUE(service.post_at(
        start + 10ms, [&] { done.count_down(); }, 1));
    done.wait();
    EXPECT_GE(Clock::now(), start + 10ms);
}

TEST(Service, StopDropsWhatWaitsAndRefusesMore) {
    Service service;
    auto owned = std::make_shared<int>(1);
    service.at(Clock::now() + 1h, [owned] {});
    service.stop();
    EXPECT_EQ(owned.use_count(), 1);
    EXPECT_FALSE(service.post([] {}));
    EXPECT_FALSE(service.post_stop([] {}, 1));
    EXPECT_EQ(service.at(Clock::now(), [] {}), 0u);
    EXPECT_FALSE(service.post_at(
        Clock::now(), [] {}, 1));
    service.stop();
}

}  // namespace
}  // namespace mooncake
