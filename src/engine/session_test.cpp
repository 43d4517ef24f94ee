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

void sweep(Session& session, Duration refresh_interval) {
    if (session.sweep(Clock::now(), refresh_interval)) session.look_after(Clock::now());
}

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
    sweep(session, 0s);
    EXPECT_FALSE(weak.expired());
    world.script.peers_usable = false;
    sweep(session, 0s);
    world.service.stop();
    EXPECT_TRUE(weak.expired());
}

TEST(Session, SweepNoticesAnotherIncarnation) {
    FakeWorld world;
    Session& session = world.session("peer");
    const auto first = *session.link(Deadline::after(10s));
    sweep(session, 1ns);
    EXPECT_EQ(*session.link(Deadline::after(10s)), first);
    world.restart();
    sweep(session, 1ns);
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
    const auto far = *ways.session.link(Deadline::after(10s));
    ASSERT_EQ(far->path(), "far");
    const Time due = ways.session.improvable_at();
    ways.near.on_connect = [&] {
        ways.near.on_connect = nullptr;
        far->peer->close(Error(Code::kUnavailable, "gone"));
        ways.session.report_failure(far);
        return Result<>();
    };
    ways.session.improve(due);
    EXPECT_EQ(ways.near.connects, 2);
    EXPECT_FALSE(ways.session.connected()) << "whoever uses it next connects, not the one that was late";
    EXPECT_EQ(ways.path(), "near");
}

TEST(Session, WithoutCacheEveryUseAsksThePeer) {
    FakeWorld world({.cache_descriptors = false});
    Session& session = world.session("peer");
    const auto first = *session.link(Deadline::after(10s));
    EXPECT_EQ(*session.link(Deadline::after(10s)), first);
    world.restart();
    EXPECT_NE(*session.link(Deadline::after(10s)), first);
}

TEST(Session, AfterCloseThereIsNoLink) {
    FakeWorld world;
    Session& session = world.session("peer");
    const auto link = *session.link(Deadline::after(10s));
    EXPECT_FALSE(world.sessions->close(Error(Code::kCancelled, "closing")).empty());
    EXPECT_FALSE(link->peer->usable());
    EXPECT_EQ(session.link(Deadline::after(10s)).error().code(), Code::kUnavailable);
}

TEST(Session, TwoNamesOfOnePeerShareOneLink) {
    FakeWorld world;
    world.aliases["localhost:1"] = "127.0.0.1:1";
    const auto first = *world.session("127.0.0.1:1").link(Deadline::after(10s));
    EXPECT_EQ(*world.session("localhost:1").link(Deadline::after(10s)), first);
    EXPECT_EQ(world.script.connects, 1);
    first->peer->close(Error(Code::kUnavailable, "gone"));
    const auto second = *world.session("localhost:1").link(Deadline::after(10s));
    EXPECT_EQ(*world.session("127.0.0.1:1").link(Deadline::after(10s)), second);
    EXPECT_EQ(world.script.connects, 2);
    EXPECT_NE(*world.session("other:1").link(Deadline::after(10s)), second);
}

TEST(Session, TwoNamesOfOnePeerConnectOnce) {
    FakeWorld world;
    world.aliases["b"] = "a";
    std::latch in_connect(1), go(1);
    world.script.on_connect = [&] {
        in_connect.count_down();
        go.wait();
        return Result<>();
    };
    std::shared_ptr<Link> first, second;
    std::jthread one([&] { first = *world.session("a").link(Deadline::after(10s)); });
    in_connect.wait();
    std::jthread other([&] { second = *world.session("b").link(Deadline::after(10s)); });
    while (world.fetches < 2) std::this_thread::yield();
    go.count_down();
    one.join();
    other.join();
    EXPECT_EQ(first, second);
    EXPECT_EQ(world.script.connects, 1);
}

TEST(Session, RefreshKeepsTheLinkOfAPeerThatIsStillTheSame) {
    FakeWorld world;
    Session& session = world.session("peer");
    const auto link = *session.link(Deadline::after(10s));
    session.refresh();
    EXPECT_FALSE(session.connected()) << "asked first";
    EXPECT_EQ(*session.link(Deadline::after(10s)), link);
    EXPECT_EQ(world.fetches, 2);
    world.restart();
    session.refresh();
    EXPECT_NE(*session.link(Deadline::after(10s)), link);
    EXPECT_EQ(world.script.connects, 2);
}

TEST(Session, AddressesOfAFormerLifeAreRefusedOnce) {
    FakeWorld world;
    Session& session = world.session("peer");
    Incarnation first;
    ASSERT_TRUE(session.link_to(first, Deadline::after(10s)));
    const auto restart = [&] {
        world.restart();
        session.refresh();
    };
    restart();
    EXPECT_TRUE(session.link(Deadline::after(10s))) << "what has no addresses goes on";
    Incarnation before = session.life();
    EXPECT_EQ(before, first);
    Incarnation fresh;
    EXPECT_EQ(session.link_to(fresh, Deadline::after(10s)).error().code(), Code::kStale);
    EXPECT_EQ(session.link_to(before, Deadline::after(10s)).error().code(), Code::kStale) << "who began before";
    Incarnation second;
    EXPECT_TRUE(session.link_to(second, Deadline::after(10s))) << "a new call, as its caller knows";
    EXPECT_NE(second, first);
    EXPECT_EQ(session.link_to(first, Deadline::after(10s)).error().code(), Code::kStale) << "a plan for another life, for ever";

    restart();
    ASSERT_TRUE(session.open(Deadline::after(10s)));
    Incarnation third;
    EXPECT_TRUE(session.link_to(third, Deadline::after(10s))) << "opened again, and so asked for addresses";
}

TEST(Session, WhoNamesALifeMeetsItOrNobody) {
    FakeWorld world;
    Session& session = world.session("peer");
    const Incarnation first = (*session.link(Deadline::after(10s)))->descriptor.incarnation;
    EXPECT_TRUE(session.meet(first, Deadline::after(10s)));
    EXPECT_EQ(world.fetches, 1) << "nobody is asked while it is the one we are connected to";
    world.restart();  // which the link does not notice
    const Incarnation second{first.value + 1};
    const auto met = session.meet(second, Deadline::after(10s));
    ASSERT_TRUE(met) << met.error().to_string();
    EXPECT_EQ((*met)->descriptor.incarnation, second);
    for (int i = 0; i < 2; ++i) EXPECT_EQ(session.meet(first, Deadline::after(10s)).error().code(), Code::kStale);
    EXPECT_EQ(world.script.connects, 2) << "the link to the life that is there stays";
    EXPECT_TRUE(session.meet(second, Deadline::after(10s)));
}

TEST(Session, WhoNamesALifeDoesNotSpeakForOthers) {
    FakeWorld world;
    Session& session = world.session("peer");
    CallerLife caller;
    Incarnation life;
    ASSERT_TRUE(session.link_to(life, Deadline::after(10s)));
    caller.met(life);
    world.restart();
    ASSERT_TRUE(session.meet(Incarnation{life.value + 1}, Deadline::after(10s)));
    Incarnation still = session.life_of(caller);
    EXPECT_EQ(still, life);
    EXPECT_EQ(session.link_to(still, Deadline::after(10s)).error().code(), Code::kStale);
}

TEST(Session, AThreadThatIsToldOfARestartIsNoExcuseForAnother) {
    FakeWorld world;
    Session& session = world.session("peer");
    const auto begin = [&](CallerLife& caller) {
        Incarnation life = session.life_of(caller);
        const auto link = session.link_to(life, Deadline::after(10s));
        caller.dealt(life, link ? nullptr : &link.error());
        return link ? Code::kOk : link.error().code();
    };
    const auto restart = [&] {
        world.restart();
        session.refresh();
    };
    CallerLife one, other, late;
    EXPECT_EQ(begin(one), Code::kOk);
    EXPECT_EQ(begin(other), Code::kOk);
    restart();
    EXPECT_EQ(begin(one), Code::kStale);
    EXPECT_EQ(begin(one), Code::kOk) << "told once";
    EXPECT_EQ(begin(other), Code::kStale);
    EXPECT_EQ(begin(other), Code::kOk);
    EXPECT_EQ(begin(late), Code::kOk) << "never dealt with a former life";

    restart();
    ASSERT_TRUE(session.open(Deadline::after(10s)));
    EXPECT_EQ(begin(one), Code::kOk) << "somebody asked anew for all of them";
    restart();
    EXPECT_EQ(begin(one), Code::kStale);
    EXPECT_EQ(begin(other), Code::kStale) << "which was good for that life only";
    EXPECT_EQ(begin(one), Code::kOk);
}

TEST(Session, MemoryThatATransportCannotCarryDoesNotBarItForTheRest) {
    TwoWays ways;
    const auto near = *ways.session.link(Deadline::after(10s));
    const auto far = *ways.session.link(Deadline::after(10s), {.unfit = {near->transport}});
    EXPECT_EQ(far->path(), "far");
    EXPECT_EQ(ways.path(), "near");
    EXPECT_EQ(*ways.session.link(Deadline::after(10s), {.unfit = {near->transport}}), far) << "kept for the next";
    EXPECT_FALSE(ways.session.link(Deadline::after(10s), {.unfit = {near->transport, far->transport}}));
    EXPECT_EQ(ways.path(), "near") << "a refusal is not remembered against others";
    ways.session.sweep(Clock::now() + 2min, 0s);
    EXPECT_EQ(ways.far.connects, 1);
    std::weak_ptr<Link> weak = far;
    EXPECT_TRUE(ways.session.connected());
}

TEST(Session, ALinkIsLentOnlyWhileThereIsNothingToAsk) {
    FakeWorld world;
    Session& session = world.session("peer");
    const auto section = session.section();
    Incarnation none;
    EXPECT_EQ(session.borrow(none), nullptr) << "not connected";
    EXPECT_TRUE(session.link(Deadline::after(10s)));
    EXPECT_EQ(session.borrow(none), nullptr) << "nobody deals with that life yet";
    Incarnation life;
    const auto link = *session.link_to(life, Deadline::after(10s));
    Incarnation met;
    EXPECT_EQ(session.borrow(met), link.get());
    EXPECT_EQ(met, life);
    Incarnation other{life.value + 1};
    EXPECT_EQ(session.borrow(other), nullptr) << "a plan for another life";

    session.refresh();
    EXPECT_EQ(session.borrow(met), nullptr);
    EXPECT_TRUE(session.link_to(met, Deadline::after(10s)));
    EXPECT_EQ(session.borrow(met), link.get());
    EXPECT_TRUE(session.open(Deadline::after(10s)));
    EXPECT_EQ(session.borrow(met), link.get());

    world.restart();
    EXPECT_FALSE(session.confirm(link, Deadline::after(10s)));
    EXPECT_EQ(session.borrow(met), nullptr);
    EXPECT_EQ(session.link_to(met, Deadline::after(10s)).error().code(), Code::kStale);
    EXPECT_EQ(session.borrow(met), nullptr) << "of the former life";
    Incarnation next;
    EXPECT_NE(session.borrow(next), nullptr);
    world.script.peers_usable = false;
    EXPECT_EQ(session.borrow(next), nullptr);
    world.script.peers_usable = true;
    session.close();
    EXPECT_EQ(session.borrow(next), nullptr);
}

TEST(Session, WithoutCacheNothingIsLent) {
    FakeWorld world({.cache_descriptors = false});
    Session& session = world.session("peer");
    Incarnation life;
    EXPECT_TRUE(session.link_to(life, Deadline::after(10s)));
    const auto section = session.section();
    EXPECT_EQ(session.borrow(life), nullptr);
}

TEST(Session, ABorrowedLinkStaysUntilItsUsersHaveLeft) {
    FakeWorld world;
    Session& session = world.session("peer");
    Incarnation life;
    std::weak_ptr<Link> weak = *session.link_to(life, Deadline::after(10s));
    {
        const auto section = session.section();
        Link* const link = session.borrow(life);
        ASSERT_NE(link, nullptr);
        link->peer->close(Error(Code::kUnavailable, "gone"));
        session.report_failure(link->shared_from_this());
        EXPECT_EQ(session.borrow(life), nullptr);
        sweep(session, 0s);
        EXPECT_FALSE(weak.expired());
        EXPECT_FALSE(link->peer->usable());
    }
    sweep(session, 0s);
    EXPECT_TRUE(weak.expired());
}

TEST(Session, LinksAreBorrowedWhileTheyBreakAndAreRenewed) {
    FakeWorld world;
    Session& session = world.session("peer");
    std::atomic<bool> stop{false};
    std::atomic<int> borrowed{0};
    std::vector<std::jthread> threads;
    for (int i = 0; i < 3; ++i)
        threads.emplace_back([&] {
            while (!stop) {
                const auto section = session.section();
                Incarnation life;
                Link* const link = session.borrow(life);
                if (link == nullptr) {
                    (void)session.link_to(life, Deadline::after(10s));
                    continue;
                }
                EXPECT_EQ(link->descriptor.incarnation, life);
                (void)link->peer->usable();
                ++borrowed;
            }
        });
    for (int round = 0; round < 500 || borrowed < 100; ++round) {
        if (auto link = session.link(Deadline::after(10s))) {
            (*link)->peer->close(Error(Code::kUnavailable, "gone"));
            session.report_failure(*link);
        }
        session.refresh();
        session.sweep(Clock::now(), 0s);
    }
    stop = true;
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
        sweep(session, 0s);
        link.reset();
    }
    EXPECT_EQ(by_us, 0);
    world.service.stop();
    EXPECT_LE(ended, kRounds);
    world.sessions.reset();
    world.router.reset();
    EXPECT_EQ(ended, kRounds) << "those that the service had no time for";
}

}  // namespace
}  // namespace mooncake
