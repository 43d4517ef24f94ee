// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/path.h"

#include <gtest/gtest.h>

namespace mooncake::fabric {
namespace {

const Time kStart = Time{} + 1h;

void take_down(PathHealth& path, Time now) {
    for (int i = 0; i < 3; ++i) path.failed(path.generation(), now);
    ASSERT_EQ(path.state(), PathState::kDown);
}

TEST(FabricPath, BeginsUnknownAndUsable) {
    PathHealth path;
    EXPECT_EQ(path.state(), PathState::kUnknown);
    EXPECT_TRUE(path.usable());
    EXPECT_EQ(path.probe_at(), Time::max());
    path.succeeded(path.generation());
    EXPECT_EQ(path.state(), PathState::kReady);
}

TEST(FabricPath, StaysInUseAfterASingleFailure) {
    PathHealth path;
    EXPECT_FALSE(path.failed(path.generation(), kStart));
    EXPECT_EQ(path.state(), PathState::kSuspect);
    EXPECT_TRUE(path.usable());
    path.succeeded(path.generation());
    EXPECT_EQ(path.state(), PathState::kReady);
    EXPECT_EQ(path.failures(), 0u);
}

TEST(FabricPath, GoesDownAfterThreeFailuresInASecond) {
    PathHealth path;
    EXPECT_FALSE(path.failed(path.generation(), kStart));
    EXPECT_FALSE(path.failed(path.generation(), kStart + 400ms));
    EXPECT_TRUE(path.failed(path.generation(), kStart + 900ms));
    EXPECT_EQ(path.state(), PathState::kDown);
    EXPECT_FALSE(path.usable());
}

TEST(FabricPath, BearsFailuresThatAreFarApart) {
    PathHealth path;
    for (int i = 0; i < 20; ++i) EXPECT_FALSE(path.failed(path.generation(), kStart + i * 1100ms));
    EXPECT_EQ(path.state(), PathState::kSuspect);
}

TEST(FabricPath, GoesDownAtOnceWhenItStalls) {
    PathHealth path;
    path.succeeded(path.generation());
    EXPECT_TRUE(path.stalled(path.generation(), kStart));
    EXPECT_EQ(path.state(), PathState::kDown);
}

TEST(FabricPath, ReportsItsEndOnce) {
    PathHealth path;
    const uint32_t generation = path.generation();
    EXPECT_TRUE(path.stalled(generation, kStart));
    EXPECT_FALSE(path.stalled(generation, kStart));
    EXPECT_FALSE(path.failed(generation, kStart));
    EXPECT_FALSE(path.stalled(path.generation(), kStart));
}

TEST(FabricPath, IgnoresWhatWasPostedBeforeItsEnd) {
    PathHealth path;
    const uint32_t before = path.generation();
    take_down(path, kStart);
    EXPECT_NE(path.generation(), before);
    path.succeeded(before);  // a late completion of the old endpoint says nothing about now
    EXPECT_EQ(path.state(), PathState::kDown);
    const Time probe = path.probe_at();
    path.failed(before, kStart + 50ms);
    EXPECT_EQ(path.probe_at(), probe);
}

TEST(FabricPath, IsProbedMoreAndMoreSeldom) {
    PathHealth path;
    take_down(path, kStart);
    Time now = kStart;
    Duration waits[] = {200ms, 400ms, 800ms, 1600ms, 3200ms, 6400ms, 10s, 10s};
    for (const Duration wait : waits) {
        EXPECT_EQ(path.probe_at(), now + wait);
        EXPECT_FALSE(path.begin_probe(now + wait - 1ms));
        now += wait;
        ASSERT_TRUE(path.begin_probe(now));
        EXPECT_FALSE(path.begin_probe(now)) << "one probe at a time";
        EXPECT_FALSE(path.failed(path.generation(), now));
    }
}

TEST(FabricPath, IsProbedAgainWhenNothingIsHeard) {
    PathHealth path;
    take_down(path, kStart);
    ASSERT_TRUE(path.begin_probe(kStart + 200ms));
    EXPECT_TRUE(path.begin_probe(kStart + 400ms));
    EXPECT_FALSE(path.begin_probe(kStart + 600ms));
    EXPECT_TRUE(path.begin_probe(kStart + 800ms));
}

TEST(FabricPath, IsProbedSoonAgainWhileItIsBeingConnected) {
    PathHealth path;
    take_down(path, kStart);
    ASSERT_TRUE(path.begin_probe(kStart + 200ms));
    path.postpone_probe(kStart + 205ms);
    EXPECT_FALSE(path.begin_probe(kStart + 204ms));
    ASSERT_TRUE(path.begin_probe(kStart + 205ms));
    // No connection in time.
    EXPECT_FALSE(path.stalled(path.generation(), kStart + 5s)) << "it was down before";
    path.postpone_probe(kStart + 5s);
    EXPECT_EQ(path.probe_at(), kStart + 5s + 400ms);
}

TEST(FabricPath, ComesBackWithASuccessfulProbe) {
    PathHealth path;
    take_down(path, kStart);
    ASSERT_TRUE(path.begin_probe(kStart + 1s));
    path.succeeded(path.generation());
    EXPECT_EQ(path.state(), PathState::kReady);
    EXPECT_EQ(path.probe_at(), Time::max());
    take_down(path, kStart + 2s);
    EXPECT_EQ(path.probe_at(), kStart + 2s + 200ms) << "patience begins anew";
}

TEST(FabricPath, IsProbedFirstWhereANeighbourStalled) {
    PathHealth unknown, ready;
    ready.succeeded(ready.generation());
    unknown.distrust(kStart);
    ready.distrust(kStart);
    EXPECT_TRUE(ready.usable());
    EXPECT_FALSE(unknown.usable());
    ASSERT_TRUE(unknown.begin_probe(kStart));
    EXPECT_FALSE(unknown.begin_probe(kStart + 100ms));
    unknown.succeeded(unknown.generation());
    EXPECT_EQ(unknown.state(), PathState::kReady);
}

TEST(FabricPath, IsUnknownAgainWithANewEndpoint) {
    PathHealth path;
    path.succeeded(path.generation());
    path.failed(path.generation(), kStart);
    const uint32_t before = path.generation();
    path.renew();
    EXPECT_EQ(path.state(), PathState::kUnknown);
    EXPECT_NE(path.generation(), before);
    EXPECT_EQ(path.failures(), 0u);
}

TEST(FabricPath, ThatIsDownIsProbedAtOnceWithANewEndpoint) {
    PathHealth path;
    take_down(path, kStart);
    const uint32_t before = path.generation();
    path.renew();
    EXPECT_FALSE(path.usable()) << "that there is an endpoint does not mean that there is a way to it";
    path.succeeded(before);
    EXPECT_FALSE(path.usable()) << "of the old one";
    ASSERT_TRUE(path.begin_probe(kStart));
    path.failed(path.generation(), kStart);
    EXPECT_EQ(path.probe_at(), kStart + 400ms) << "patience does not begin anew";
    ASSERT_TRUE(path.begin_probe(kStart + 400ms));
    path.succeeded(path.generation());
    EXPECT_EQ(path.state(), PathState::kReady);
}

}  // namespace
}  // namespace mooncake::fabric
