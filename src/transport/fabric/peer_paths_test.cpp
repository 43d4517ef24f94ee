// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/peer_paths.h"

#include <gtest/gtest.h>

#include "transport/fabric/testing/fake_fabric.h"

namespace mooncake::fabric {
namespace {

class ManualTime final : public TimeSource {
public:
    Time now() const noexcept override { return now_; }
    void pass(Duration time) { now_ += time; }

private:
    Time now_ = Time(1h);
};

/// Two rails of ours, and two of a target's that are never driven.
class PeerPathsTest : public ::testing::Test {
protected:
    struct Side {
        Side(FakeNetwork& network, const std::string& name, const ProviderProfile& profile)
            : fabric(network, {{.name = name + "0"}, {.name = name + "1"}}) {
            const std::vector<Offer> offers = fabric.offers({.provider = "net"}).value();
            for (const Offer& offer : offers)
                rails.push_back(Rail::open(fabric, offer, {.index = static_cast<uint32_t>(rails.size()), .profile = profile}).value());
            for (const auto& rail : rails) pointers.push_back(rail.get());
        }
        FakeFabric fabric;
        std::vector<std::unique_ptr<Rail>> rails;
        std::vector<Rail*> pointers;
    };
    Route* open(uint32_t rail, uint32_t remote) {
        Rail& from = *here.rails[rail];
        Lock lock(from.mutex());
        return paths.open(from, remote) ? paths.at(rail, remote).route.get() : nullptr;
    }
    void close_replaced(uint32_t rail) {
        Lock lock(here.rails[rail]->mutex());
        paths.close_replaced(*here.rails[rail]);
    }
    void forget_idle(uint32_t rail) {
        Lock lock(here.rails[rail]->mutex());
        paths.forget_idle(*here.rails[rail], time.now());
    }
    void close_all() {
        for (const auto& rail : here.rails) {
            Lock lock(rail->mutex());
            paths.close_all(*rail);
        }
    }
    size_t addresses(const std::string& nic) const { return network.counts(nic).addresses; }
    void go_down(uint32_t rail, uint32_t remote) {
        PathHealth& health = paths.at(rail, remote).health;
        health.stalled(health.generation(), time.now());
    }
    void TearDown() override { close_all(); }

    const ProviderProfile profile = *find_profile("tcp");
    FakeNetwork network;
    ManualTime time;
    Side here{network, "a", profile}, there{network, "b", profile};
    RemoteRails remotes{std::vector<RailRecord>{there.rails[0]->record(), there.rails[1]->record()}, profile, time};
    PeerPaths paths{here.pointers, remotes, profile, time};
};

TEST_F(PeerPathsTest, ARouteIsOpenedOnceForAnEndpoint) {
    Route* const route = open(0, 1);
    ASSERT_NE(route, nullptr);
    EXPECT_EQ(open(0, 1), route);
    EXPECT_EQ(route->epoch, remotes[1].epoch);
    EXPECT_EQ(addresses("a0"), 1u);
    EXPECT_EQ(addresses("a1"), 0u);
}

TEST_F(PeerPathsTest, AReplacedRouteLivesWhileSomethingIsInFlight) {
    Route* const old = open(0, 0);
    ASSERT_NE(old, nullptr);
    old->in_flight = 1;
    remotes.renew({.rail = 0, .epoch = remotes[0].epoch + 1, .name = remotes[1].name});
    Route* const fresh = open(0, 0);
    ASSERT_NE(fresh, nullptr);
    EXPECT_NE(fresh, old);
    close_replaced(0);
    EXPECT_EQ(addresses("a0"), 2u);
    old->in_flight = 0;
    close_replaced(0);
    EXPECT_EQ(addresses("a0"), 1u);
}

TEST_F(PeerPathsTest, NoRouteLeadsToARailThatDoesNotServe) {
    ASSERT_NE(open(0, 0), nullptr);
    remotes.renew({.rail = 0, .epoch = remotes[0].epoch + 1, .name = {}});
    EXPECT_EQ(open(0, 0), nullptr);
    close_replaced(0);
    EXPECT_EQ(addresses("a0"), 0u);
}

TEST_F(PeerPathsTest, IdleRoutesAreForgotten) {
    Route* const busy = open(0, 0);
    ASSERT_NE(busy, nullptr);
    ASSERT_NE(open(0, 1), nullptr);
    busy->in_flight = 1;
    time.pass(profile.idle_timeout + 1s);
    forget_idle(0);
    EXPECT_EQ(addresses("a0"), 1u);
    EXPECT_EQ(paths.at(0, 0).route.get(), busy);
    busy->in_flight = 0;
}

TEST_F(PeerPathsTest, ARouteThatConnectsIsNotForgotten) {
    Route* const route = open(0, 0);
    ASSERT_NE(route, nullptr);
    route->postpone(time.now());
    time.pass(profile.idle_timeout + 1s);
    forget_idle(0);
    EXPECT_EQ(paths.at(0, 0).route.get(), route);
    route->connected();
    time.pass(profile.idle_timeout + 1s);
    forget_idle(0);
    EXPECT_EQ(paths.at(0, 0).route, nullptr);
    EXPECT_EQ(addresses("a0"), 0u);
}

TEST_F(PeerPathsTest, PostsAreTriedAgainAfterMoreAndMoreTimeWhileAConnectionIsMade) {
    Route route;
    Duration before{};
    int looks = 0;
    const Time start = time.now();
    for (int i = 0; i < 100; ++i) {
        looks += route.postpone(time.now()) ? 1 : 0;
        const Duration pause = route.retry_at - time.now();
        EXPECT_GE(pause, before);
        EXPECT_LE(pause, Route::kBackoffMax);
        EXPECT_EQ(route.connecting_since, start);
        before = pause;
        time.pass(pause);
    }
    EXPECT_EQ(before, Route::kBackoffMax);
    EXPECT_GT(looks, 2) << "is the endpoint still there?";
    EXPECT_LT(looks, 10) << "but not all the time";
    route.connected();
    EXPECT_FALSE(route.postpone(time.now())) << "as at first";
    EXPECT_LT(route.retry_at - time.now(), Route::kBackoffMax);
}

TEST_F(PeerPathsTest, PathsLeadOnlyBetweenRailsOfOneKind) {
    std::vector<RailRecord> records{remotes[0], remotes[1]};
    records[0].provider = "another";
    const RemoteRails mixed(records, profile, time);
    PeerPaths some(here.pointers, mixed, profile, time);
    EXPECT_TRUE(some.any_compatible());
    EXPECT_FALSE(some.at(0, 0).compatible);
    EXPECT_TRUE(some.at(0, 1).compatible);
    records[1].address_format += 1;
    const RemoteRails foreign(records, profile, time);
    EXPECT_FALSE(PeerPaths(here.pointers, foreign, profile, time).any_compatible());
}

TEST_F(PeerPathsTest, AnotherEndpointMakesAPathUnknownAgain) {
    PathHealth& health = paths.at(1, 0).health;
    health.succeeded(health.generation());
    ASSERT_TRUE(paths.any_ready());
    paths.renew(1);
    EXPECT_TRUE(paths.any_ready()) << "it was that of the other rail";
    paths.renew(0);
    EXPECT_FALSE(paths.any_ready());
}

TEST_F(PeerPathsTest, ThoseInUseAndThoseThatAreDownAreCounted) {
    ASSERT_NE(open(0, 0), nullptr);
    go_down(1, 1);
    PathCounts counts(2);
    paths.count(counts);
    EXPECT_EQ(counts[0][static_cast<size_t>(PathState::kUnknown)], 1);
    EXPECT_EQ(counts[1][static_cast<size_t>(PathState::kDown)], 1);
    EXPECT_EQ(counts[1][static_cast<size_t>(PathState::kUnknown)], 0);
}

TEST_F(PeerPathsTest, ARailIsDistrustedOnlyWhileAnotherIsLeft) {
    go_down(0, 0);
    paths.distrust(0, time.now());
    EXPECT_FALSE(paths.at(0, 1).health.usable());
    EXPECT_TRUE(paths.any_usable());
    go_down(1, 0);
    paths.distrust(1, time.now());
    EXPECT_TRUE(paths.at(1, 1).health.usable()) << "it is the last";
    go_down(1, 1);
    EXPECT_FALSE(paths.any_usable());
    EXPECT_TRUE(paths.any_compatible());
}

TEST_F(PeerPathsTest, AnAnswerEndsTheSuspensionOfWhatFailedBeforeTheQuestion) {
    const Time asked = time.now();
    paths.at(0, 0).suspended = asked;
    paths.at(0, 1).suspended = asked + 1ms;
    paths.answered(asked);
    EXPECT_EQ(paths.at(0, 0).suspended, Time{});
    EXPECT_NE(paths.at(0, 1).suspended, Time{});
}

}  // namespace
}  // namespace mooncake::fabric
