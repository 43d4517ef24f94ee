// SPDX-License-Identifier: Apache-2.0
#include "engine/session.h"

#include <gtest/gtest.h>


#include "engine/testing/fake_transport.h"
#include "engine/testing/fake_world.h"
#include "engine/testing/two_ways.h"

namespace mooncake {
namespace {

using testing::FakeWorld;
using testing::TwoWays;

TEST(SessionTable, GivesTheSameSessionForTheSameName) {
    FakeWorld world;
    const auto own = *world.sessions->get("own");
    const auto peer = *world.sessions->get("peer");
    EXPECT_EQ(world.sessions->id_of(own), 0);
    EXPECT_EQ(*world.sessions->get("peer"), peer);
    EXPECT_EQ(*world.sessions->get(world.sessions->id_of(peer)), peer);
    EXPECT_EQ(world.sessions->get(-1).error().code(), Code::kNotFound);
    EXPECT_EQ(world.sessions->get(99).error().code(), Code::kNotFound);
    EXPECT_EQ(world.sessions->get("").error().code(), Code::kInvalidArgument);
    EXPECT_EQ(world.sessions->get(std::string(1000, 'x')).error().code(), Code::kInvalidArgument);
}

TEST(SessionTable, ClosesAlsoLinksThatOnlyATransferStillHolds) {
    TwoWays ways;
    SessionTable sessions(ways, *ways.router, {});
    const auto session = *sessions.get("peer");
    ways.near_is(Code::kUnavailable);
    const auto held = *session->link(Deadline::after(10s));
    ways.near_is({});
    session->improve(session->improvable_at());
    EXPECT_NE(*session->link(Deadline::after(10s)), held);
    sessions.close(Error(Code::kCancelled, "closing"));
    EXPECT_FALSE(held->peer->usable());
}

TEST(SessionTable, NamesThatLeadNowhereAreForgottenUnlessTheirIdIsKnown) {
    FakeWorld world;
    const auto sweep_all = [&](Time now) {
        world.sessions->for_each([&](const std::shared_ptr<Session>& session) { session->sweep(now, 0s); });
        world.sessions->forget_unused(now);
    };
    const SegmentId opened = world.id("opened");
    ASSERT_TRUE(world.session("alive").link(Deadline::after(10s)));
    world.script.on_connect = [] { return Result<>(fail(Code::kUnavailable, "nobody there")); };
    for (int i = 0; i < 100; ++i) EXPECT_FALSE(world.session(std::to_string(i)).link(Deadline::after(10s)));
    const auto held = *world.sessions->get("7");
    const Time now = Clock::now();
    sweep_all(now);
    sweep_all(now + 1s);
    EXPECT_EQ(world.sessions->size(), 102u) << "not at once";
    sweep_all(now + 2min);
    EXPECT_EQ(world.sessions->size(), 3u);
    EXPECT_EQ((*world.sessions->get(opened))->name(), "opened");
    EXPECT_EQ(*world.sessions->get("7"), held);
    EXPECT_TRUE(world.session("alive").connected());
}

TEST(SessionTable, ASessionThatIsForgottenStaysForThoseWhoUseIt) {
    FakeWorld world;
    std::weak_ptr<Session> weak = *world.sessions->get("peer");
    const auto sweep_at = [&](Time now) {
        world.sessions->for_each([&](const std::shared_ptr<Session>& session) { session->sweep(now, 0s); });
        world.sessions->forget_unused(now);
    };
    const Time now = Clock::now();
    {
        const auto section = world.sessions->section();
        Session* const session = world.sessions->find("peer");
        ASSERT_NE(session, nullptr);
        for (const Duration after : {Duration(0s), Duration(1s), Duration(2min), Duration(3min)}) sweep_at(now + after);
        EXPECT_EQ(world.sessions->find("peer"), nullptr);
        EXPECT_EQ(session->name(), "peer");
    }
    sweep_at(now + 4min);
    EXPECT_TRUE(weak.expired());
}

TEST(SessionTable, AnOldLifeIsRememberedForLonger) {
    FakeWorld world;
    Incarnation life;
    ASSERT_TRUE(world.session("peer").link_to(life, Deadline::after(10s)));
    world.script.peers_usable = false;
    const auto sweep_at = [&](Time now) {
        world.session("peer").sweep(now, 0s);
        world.sessions->forget_unused(now);
    };
    const Time now = Clock::now();
    for (const Duration after : {Duration(0s), Duration(1s), Duration(2min)}) sweep_at(now + after);
    EXPECT_EQ(world.session("peer").life(), life);
    sweep_at(now + 2h);
    EXPECT_EQ(world.session("peer").life(), Incarnation{});
}

TEST(SessionTable, WhatWasFoundLastIsForgottenWithTheName) {
    FakeWorld world, other;
    SessionTable::Last last;
    const auto find = [&last](FakeWorld& in, std::string_view name) {
        const auto section = in.sessions->section();
        return in.sessions->find(name, last);
    };
    EXPECT_EQ(find(world, "peer"), nullptr);
    Session* const peer = &world.session("peer");
    Session* const second = &world.session("second");
    EXPECT_EQ(find(world, "peer"), peer);
    EXPECT_EQ(find(world, "peer"), peer);
    EXPECT_EQ(find(world, "second"), second);
    EXPECT_EQ(find(world, "secon"), nullptr);
    EXPECT_EQ(find(world, "peer"), peer);
    EXPECT_EQ(&last.as_caller(), peer->caller().get());
    EXPECT_EQ(find(other, "peer"), nullptr) << "another table has none of that name";

    EXPECT_EQ(find(world, "peer"), peer);
    const Time now = Clock::now();
    for (const Duration after : {Duration(0s), Duration(1s), Duration(2min)}) {
        world.sessions->for_each([&](const std::shared_ptr<Session>& session) { session->sweep(now + after, 0s); });
        world.sessions->forget_unused(now + after);
    }
    EXPECT_EQ(world.sessions->size(), 0u);
    EXPECT_EQ(find(world, "peer"), nullptr);
    Session* const again = &world.session("peer");
    EXPECT_EQ(find(world, "peer"), again);
}

}  // namespace
}  // namespace mooncake
