// SPDX-License-Identifier: Apache-2.0
#include "transport/ascend/route_state.h"

#include <gtest/gtest.h>

namespace mooncake::ascend {
namespace {

using State = RouteState::State;
using Step = RouteState::Step;

class RouteStateTest : public ::testing::Test {
protected:
    void connect() {
        ASSERT_EQ(route.next(now, true), Step::kConnect);
        route.begin_connect();
        route.connected(now);
    }
    void disconnect() {
        ASSERT_EQ(route.next(now, false), Step::kDisconnect);
        route.begin_disconnect();
        route.disconnected();
    }
    RouteState route{{.idle_release = 10s, .backoff_min = 100ms, .backoff_max = 1s}};
    Time now{1000s};
};

TEST_F(RouteStateTest, ConnectsOnceForAllWhoNeedIt) {
    EXPECT_EQ(route.next(now, false), Step::kNothing);
    EXPECT_EQ(route.next(now, true), Step::kConnect);
    route.begin_connect();
    EXPECT_EQ(route.next(now, true), Step::kNothing);
    route.connected(now);
    EXPECT_EQ(route.next(now, true), Step::kRun);
}

TEST_F(RouteStateTest, DisconnectsOnlyWhenNothingIsInFlight) {
    connect();
    const uint64_t epoch = route.start();
    route.start();
    route.fail(epoch);
    EXPECT_EQ(route.state(), State::kDraining);
    EXPECT_EQ(route.next(now, true), Step::kNothing);
    route.finish(now);
    EXPECT_EQ(route.next(now, true), Step::kNothing);
    route.finish(now);
    EXPECT_EQ(route.next(now, true), Step::kDisconnect);
    disconnect();
    EXPECT_EQ(route.next(now, true), Step::kConnect);
}

TEST_F(RouteStateTest, AFailureOfAnOlderEpochLeavesTheLinkAlone) {
    connect();
    const uint64_t old = route.start();
    route.finish(now);
    route.fail(old);
    disconnect();
    connect();
    EXPECT_EQ(route.epoch(), old + 1);
    route.fail(old);
    EXPECT_EQ(route.state(), State::kReady);
}

TEST_F(RouteStateTest, AFailedConnectIsNotRepeatedAtOnceAndLaterMoreRarely) {
    for (const Duration pause : {100ms, 200ms, 400ms, 800ms, 1000ms, 1000ms}) {
        ASSERT_EQ(route.next(now, true), Step::kConnect);
        route.begin_connect();
        route.connect_failed(now);
        EXPECT_EQ(route.next(now, true), Step::kRefuse);
        EXPECT_EQ(route.next(now, false), Step::kNothing);
        now += pause - 1ms;
        EXPECT_EQ(route.next(now, true), Step::kRefuse);
        now += 1ms;
    }
    connect();
    route.leave();
    disconnect();
    route.begin_connect();
    route.connect_failed(now);
    now += 100ms;
    EXPECT_EQ(route.next(now, true), Step::kConnect) << "a success forgets what was before";
}

TEST_F(RouteStateTest, ALinkThatNobodyUsesIsReleasedAndComesBack) {
    connect();
    now += 9s;
    route.start();
    EXPECT_EQ(route.next(now + 100s, false), Step::kNothing) << "in flight";
    route.finish(now);
    EXPECT_EQ(route.next(now + 9s, false), Step::kNothing);
    now += 10s;
    EXPECT_EQ(route.next(now, true), Step::kRun) << "wanted after all";
    disconnect();
    connect();
}

TEST_F(RouteStateTest, LeavingWhatIsNotReadyChangesNothing) {
    route.leave();
    EXPECT_EQ(route.state(), State::kIdle);
    route.begin_connect();
    route.leave();
    EXPECT_EQ(route.state(), State::kConnecting);
}

}  // namespace
}  // namespace mooncake::ascend
