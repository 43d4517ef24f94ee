// SPDX-License-Identifier: Apache-2.0
#include "engine/session.h"

#include <gtest/gtest.h>

#include <latch>
#include <thread>

#include "engine/testing/fake_transport.h"
#include "engine/testing/fake_world.h"
#include "engine/testing/two_ways.h"

namespace mooncake {
namespace {

using testing::FakeWorld;
using testing::TwoWays;

TEST(Session, ConnectsOnceForAllThatWait) {
    FakeWorld world;
    std::latch in_connect(1), go(1);
    world.script.on_connect = [&] {
        in_connect.count_down();
        go.wait();
        return Result<>();
    };
    Session& session = world.session("peer");
    std::vector<std::jthread> threads;
    std::atomic<int> linked{0};
    for (int i = 0; i < 8; ++i) threads.emplace_back([&] { linked += session.link(Deadline::after(10s)).has_value(); });
    in_connect.wait();
    go.count_down();
    threads.clear();
    EXPECT_EQ(linked, 8);
    EXPECT_EQ(world.script.connects, 1);
}

TEST(Session, ADeadPeerNeverDelaysAnother) {
    FakeWorld world;
    std::latch in_connect(1), go(1);
    world.script.on_connect = [&]() -> Result<> {
        if (std::this_thread::get_id() == world.blocked_thread) {
            in_connect.count_down();
            go.wait();
        }
        return {};
    };
    std::jthread stuck([&] {
        world.blocked_thread = std::this_thread::get_id();
        (void)world.session("dead").link(Deadline::after(10s));
    });
    in_connect.wait();
    EXPECT_TRUE(world.session("alive").link(Deadline::after(10s)));
    go.count_down();
}

TEST(Session, AWaiterGivesUpAtItsOwnDeadline) {
    FakeWorld world;
    std::latch in_connect(1), go(1);
    world.script.on_connect = [&] {
        in_connect.count_down();
        go.wait();
        return Result<>();
    };
    Session& session = world.session("peer");
    std::jthread opener([&] { (void)session.link(Deadline::after(10s)); });
    in_connect.wait();
    EXPECT_EQ(session.link(Deadline::after(1ms)).error().code(), Code::kTimedOut);
    go.count_down();
}

TEST(Session, RemembersAFailureForAMoment) {
    FakeWorld world;
    world.script.on_connect = [] { return Result<>(fail(Code::kUnavailable, "nobody there")); };
    Session& session = world.session("peer");
    EXPECT_FALSE(session.link(Deadline::after(10s)));
    for (int i = 0; i < 100; ++i) EXPECT_FALSE(session.link(Deadline::after(10s)));
    EXPECT_LT(world.script.connects, 100) << "a storm of calls must not become a storm of connects";
    world.script.on_connect = nullptr;
    session.refresh();
    EXPECT_TRUE(session.link(Deadline::after(10s)));
}

TEST(Session, ErrorsNameTheSegment) {
    FakeWorld world;
    world.script.on_connect = [] { return Result<>(fail_errno(Code::kUnavailable, ECONNREFUSED, "cannot connect")); };
    const auto link = world.session("10.1.2.3:15000").link(Deadline::after(10s));
    ASSERT_FALSE(link);
    EXPECT_NE(link.error().to_string().find("10.1.2.3:15000"), std::string::npos) << link.error().to_string();
    EXPECT_NE(link.error().to_string().find("fake"), std::string::npos);
    EXPECT_EQ(link.error().system_errno(), ECONNREFUSED);
}

TEST(Session, AStaleDescriptorIsFetchedAgainAtOnce) {
    FakeWorld world;
    int calls = 0;
    world.script.on_connect = [&]() -> Result<> {
        if (++calls == 1) return fail(Code::kStale, "another incarnation");
        return {};
    };
    EXPECT_TRUE(world.session("peer").link(Deadline::after(10s)));
    EXPECT_EQ(world.fetches, 2);
}

TEST(Session, ABrokenLinkIsReplaced) {
    FakeWorld world;
    Session& session = world.session("peer");
    auto first = session.link(Deadline::after(10s));
    ASSERT_TRUE(first);
    (*first)->peer->close(Error(Code::kUnavailable, "gone"));
    auto second = session.link(Deadline::after(10s));
    ASSERT_TRUE(second);
    EXPECT_NE(*first, *second);
    EXPECT_EQ(world.fetches, 2) << "the descriptor is fetched anew with the connection";
}

TEST(Session, SweepDropsALinkThatBrokeWhileIdle) {
    FakeWorld world;
    Session& session = world.session("peer");
    std::weak_ptr<Link> weak = *session.link(Deadline::after(10s));
    session.sweep(0s);
    EXPECT_FALSE(weak.expired());
    world.script.peers_usable = false;
    session.sweep(0s);
    world.service.stop();
    EXPECT_TRUE(weak.expired());
}

TEST(Session, SweepNoticesAnotherIncarnation) {
    FakeWorld world;
    Session& session = world.session("peer");
    const auto first = *session.link(Deadline::after(10s));
    session.sweep(1ns);
    EXPECT_EQ(*session.link(Deadline::after(10s)), first);
    world.incarnation = Incarnation{99};
    session.sweep(1ns);
    EXPECT_NE(*session.link(Deadline::after(10s)), first);
}

TEST(Session, ASecondBestLinkIsImprovedOnceTheBetterWayWorksAgain) {
    TwoWays ways;
    ways.near_is(Code::kUnavailable);
    const Time began = Clock::now();
    const auto second_best = *ways.session.link(Deadline::after(10s));
    EXPECT_EQ(second_best->path(), "far");
    ways.session.improve(began);
    EXPECT_EQ(ways.near.connects, 1) << "not at once";
    const Time due = ways.session.improvable_at();
    EXPECT_GE(due, began + 1s);
    ways.session.improve(due);
    EXPECT_EQ(ways.near.connects, 2);
    EXPECT_EQ(ways.path(), "far");
    EXPECT_EQ(ways.far.connects, 1) << "nothing was done to what works";
    EXPECT_GE(ways.session.improvable_at(), due + 2s) << "less often each time";
    ways.near_is({});
    ways.session.improve(ways.session.improvable_at());
    EXPECT_EQ(ways.path(), "near");
    EXPECT_TRUE(second_best->peer->usable()) << "whoever still uses it";
    EXPECT_EQ(ways.session.improvable_at(), Time::max());
}

TEST(Session, AWayThatComesAndGoesIsTriedLessAndLessOften) {
    TwoWays ways;
    Duration last{0};
    for (int round = 0; round < 12; ++round) {
        ways.near_is(Code::kUnavailable);
        const Time now = Clock::now();
        ASSERT_EQ(ways.path(), "far");
        const Time due = ways.session.improvable_at();
        EXPECT_GE(due - now, std::min<Duration>(last, 1min)) << round;
        EXPECT_LE(due - now, 1min + 10s);
        last = due - now;
        ways.near_is({});
        ways.session.improve(due);
        const auto link = *ways.session.link(Deadline::after(10s));
        ASSERT_EQ(link->path(), "near");
        link->peer->close(Error(Code::kUnavailable, "no path"));
    }
    EXPECT_GE(last, 1min);
}

TEST(Session, AWayThatIsNotSupportedIsNotTriedAgain) {
    TwoWays ways;
    ways.near_is(Code::kNotSupported);
    EXPECT_EQ(ways.path(), "far");
    EXPECT_EQ(ways.session.improvable_at(), Time::max());
    TwoWays direct;
    EXPECT_EQ(direct.path(), "near");
    EXPECT_EQ(direct.session.improvable_at(), Time::max());
}

TEST(Session, ALinkThatWasReplacedMeanwhileIsNotImproved) {
    TwoWays ways;
    ways.near_is(Code::kUnavailable);
    ASSERT_EQ(ways.path(), "far");
    const Time due = ways.session.improvable_at();
    ways.near.on_connect = [&] {
        ways.near.on_connect = nullptr;
        ways.session.refresh();
        return Result<>();
    };
    ways.session.improve(due);
    EXPECT_EQ(ways.near.connects, 2);
    EXPECT_EQ(ways.path(), "near");
    EXPECT_EQ(ways.near.connects, 3) << "by whoever used it next, not by the one that was late";
}

TEST(Session, WithoutCacheEveryUseAsksThePeer) {
    FakeWorld world({.cache_descriptors = false});
    Session& session = world.session("peer");
    const auto first = *session.link(Deadline::after(10s));
    EXPECT_EQ(*session.link(Deadline::after(10s)), first);
    world.incarnation = Incarnation{99};
    EXPECT_NE(*session.link(Deadline::after(10s)), first);
}

TEST(Session, AfterCloseThereIsNoLink) {
    FakeWorld world;
    Session& session = world.session("peer");
    const auto link = *session.link(Deadline::after(10s));
    session.close(Error(Code::kCancelled, "closing"));
    EXPECT_FALSE(link->peer->usable());
    EXPECT_EQ(session.link(Deadline::after(10s)).error().code(), Code::kUnavailable);
}

TEST(Session, WhoLetsGoOfALinkLastNeverEndsThePeerItself) {
    // It may be a thread of that peer, which its end would wait for.
    FakeWorld world;
    std::atomic<int> by_us{0}, ended{0};
    world.script.on_peer_end = [&, us = std::this_thread::get_id()] {
        by_us += std::this_thread::get_id() == us;
        ++ended;
    };
    Session& session = world.session("peer");
    constexpr int kRounds = 5000;
    for (int i = 0; i < kRounds; ++i) {
        auto link = *session.link(Deadline::after(10s));
        link->peer->close(Error(Code::kUnavailable, "gone"));
        session.sweep(0s);
        link.reset();
    }
    EXPECT_EQ(by_us, 0);
    world.service.stop();
    EXPECT_LE(ended, kRounds);
    world.sessions.reset();
    world.router.reset();
    EXPECT_EQ(ended, kRounds) << "those that the service had no time for";
}

TEST(SessionTable, GivesTheSameSessionForTheSameName) {
    FakeWorld world;
    Session* const own = *world.sessions->get("own");
    Session* const peer = *world.sessions->get("peer");
    EXPECT_EQ(own->id(), 0);
    EXPECT_EQ(*world.sessions->get("peer"), peer);
    EXPECT_EQ(*world.sessions->get(peer->id()), peer);
    EXPECT_EQ(world.sessions->get(-1).error().code(), Code::kNotFound);
    EXPECT_EQ(world.sessions->get(99).error().code(), Code::kNotFound);
    EXPECT_EQ(world.sessions->get("").error().code(), Code::kInvalidArgument);
    EXPECT_EQ(world.sessions->get(std::string(1000, 'x')).error().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace mooncake
