// SPDX-License-Identifier: Apache-2.0
// A node that has not heard everything from a master, and the next master, which hears of it from others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "store/protocol/behind_clients.h"
#include "store/service/testing/served_master.h"

namespace mooncake::store {
namespace {

using store::testing::Caller;
using store::testing::eventually;
using store::testing::Following;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr ClientId kNode{1, 1}, kOther{2, 2}, kReader{3, 3}, kLate{4, 4};
// Lives before that of the server, and moments of them.
constexpr HistoryPoint kThen{1000, 5}, kNow{1000, 9}, kNextLife{1001, 3};

std::unique_ptr<MasterServer> serve() {
    auto server = MasterServer::create({.core = {.client_ttl = 1h}, .threads = 2});
    MC_CHECK(server);
    (*server)->start();
    return std::move(*server);
}

class BehindTest : public ::testing::Test {
protected:
    static std::vector<ClientId> behind(Following& following) {
        std::vector<ClientId> clients;
        for (const EventUpdate& update : following.updates())
            for (const Behind& one : update.behind)
                if (one.client) clients.push_back(one.client);
        return clients;
    }
    static std::vector<ClientId> caught_up(Following& following) {
        std::vector<ClientId> clients;
        for (const EventUpdate& update : following.updates())
            clients.insert(clients.end(), update.caught_up.begin(), update.caught_up.end());
        return clients;
    }
    static bool hears_of_behind(Following& following) {
        return eventually([&] { return !behind(following).empty(); });
    }
    static bool hears_of_caught_up(Following& following) {
        return eventually([&] { return !caught_up(following).empty(); });
    }
    /// What every follower was told of the whole life.
    static std::optional<HistoryPoint> went_on(Following& following) {
        std::optional<HistoryPoint> found;
        for (const EventUpdate& update : following.updates())
            for (const Behind& one : update.behind)
                if (!one.client) found = one.since;
        return found;
    }
    void witness(const Behind& one, const ClientId& by = kReader, HistoryPoint heard = kNow) {
        caller_.remount({.client = by, .segments = {}, .behind = {&one, 1}, .heard = heard});
    }
    /// The node reports one value that an earlier master has given out.
    RemountReply report(const ClientId& client, HistoryPoint heard, std::string_view key = "price") {
        const HeldObject object{.tenant = {}, .key = key, .group = {}, .offset = 0, .length = 100, .generation = 5, .checksum = 1};
        const HeldSegment held{.segment = Caller::segment(1), .objects = {&object, 1}, .writes = {}, .quarantined = {}, .exact = true};
        return caller_.remount({.client = client, .epoch = server_->epoch(), .segments = {&held, 1}, .heard = heard});
    }
    StoreCode get(std::string key) { return caller_.get({std::move(key)}).items[0].code; }

    std::unique_ptr<MasterServer> server_ = serve();
    Caller caller_{format_text("127.0.0.1:{}", server_->port())};
};

TEST_F(BehindTest, ANodeWhoseStreamBreaksIsNamedToAllOthersUntilItHasHeardAllAgain) {
    caller_.join(kNode, 1);
    caller_.join(kReader, 0);
    Following reader(caller_.address(), kReader);
    ASSERT_TRUE(reader.wait_complete());
    {
        Following node(caller_.address(), kNode);
        ASSERT_TRUE(node.wait_complete());
        caller_.put(kNode, {"price"});
        EXPECT_THAT(behind(reader), IsEmpty());
    }
    ASSERT_TRUE(hears_of_behind(reader));
    EXPECT_THAT(behind(reader), ElementsAre(kNode));
    caller_.join(kLate, 0);
    Following late(caller_.address(), kLate);
    ASSERT_TRUE(late.wait_complete());
    EXPECT_THAT(behind(late), ElementsAre(kNode)) << "who comes later is told at once";
    Following node(caller_.address(), kNode);
    ASSERT_TRUE(node.wait_complete());
    ASSERT_TRUE(hears_of_caught_up(reader));
    EXPECT_THAT(caught_up(reader), ElementsAre(kNode));
}

TEST_F(BehindTest, AMasterOfALifeThatNobodyCanHaveHeardOfIsNotBelieved) {
    for (const uint64_t life : {UINT64_MAX, UINT64_MAX - 1, Generations::kEnd}) caller_.remount({.client = kLate, .heard = {life, 1}});
    caller_.join(kNode, 1);
    caller_.join(kReader, 0);
    Following reader(caller_.address(), kReader);
    ASSERT_TRUE(reader.wait_complete());
    {
        Following node(caller_.address(), kNode);
        ASSERT_TRUE(node.wait_complete());
        caller_.put(kNode, {"price"});
    }
    EXPECT_TRUE(hears_of_behind(reader));
}

TEST_F(BehindTest, WhoLendsNothingCannotBeBehind) {
    caller_.join(kNode, 1);
    caller_.join(kReader, 0);
    Following node(caller_.address(), kNode);
    ASSERT_TRUE(node.wait_complete());
    {
        Following reader(caller_.address(), kReader);
        ASSERT_TRUE(reader.wait_complete());
    }
    ASSERT_TRUE(eventually([&] { return server_->followers() == 1; })) << "it was noticed that the reader has gone";
    {
        Following other(caller_.address(), kNode);  // takes the place of the first
        ASSERT_TRUE(other.wait_complete());
        EXPECT_THAT(behind(other), IsEmpty());
    }
}

TEST_F(BehindTest, WhatItTellsOfAnEarlierMastersValuesIsNotBelieved) {
    witness({kNode, kNow});
    const auto reply = report(kNode, kThen);
    EXPECT_EQ(reply.segments[0].code, StoreCode::kOk) << "its memory is welcome";
    EXPECT_EQ(reply.segments[0].stale, 1u);
    EXPECT_EQ(get("price"), StoreCode::kObjectNotFound);
}

TEST_F(BehindTest, IfItWasBelievedBeforeAnybodySaidSoItsValuesGo) {
    EXPECT_EQ(report(kNode, kThen).segments[0].adopted, 1u);
    ASSERT_EQ(get("price"), StoreCode::kOk);
    witness({kNode, kNow});
    EXPECT_EQ(get("price"), StoreCode::kObjectNotFound) << "the one who said so does not read it";
    EXPECT_EQ(caller_.heartbeat(kNode).status, HeartbeatStatus::kNeedRemount);
    EXPECT_EQ(report(kNode, kThen).segments[0].stale, 1u);
    EXPECT_EQ(get("price"), StoreCode::kObjectNotFound);
}

TEST_F(BehindTest, EvenIfItHasBeenToldSinceWhatWasBelievedOfIt) {
    EXPECT_EQ(report(kNode, kThen).segments[0].adopted, 1u);
    HistoryPoint told;
    {
        Following node(caller_.address(), kNode);
        ASSERT_TRUE(node.wait_complete());
        told = node.updates().back().now;
        witness({kNode, kNow});
        EXPECT_EQ(get("price"), StoreCode::kObjectNotFound);
    }
    EXPECT_EQ(report(kNode, told).segments[0].stale, 1u) << "we knew no better than it did";
    EXPECT_EQ(get("price"), StoreCode::kObjectNotFound);
    Following node(caller_.address(), kNode);
    ASSERT_TRUE(node.wait_complete());
    witness({kNode, kNow}, kLate);
    EXPECT_EQ(caller_.heartbeat(kNode).status, HeartbeatStatus::kOk) << "now it has nothing of that time any more";
}

TEST_F(BehindTest, AWitnessWhoHasNotHeardThatItCaughtUpIsNotBelieved) {
    witness({kNode, kThen});
    EXPECT_EQ(report(kNode, kNow).segments[0].adopted, 1u) << "it has heard more from the same master since";
    EXPECT_EQ(get("price"), StoreCode::kOk);
    witness({kNode, kThen}, kLate);
    EXPECT_EQ(get("price"), StoreCode::kOk);
    EXPECT_EQ(caller_.heartbeat(kNode).status, HeartbeatStatus::kOk);
}

TEST_F(BehindTest, OneThatWasAwayForAWholeLifeThatRemovedThingsIsNotBelieved) {
    EXPECT_EQ(report(kNode, kNow).segments[0].adopted, 1u);
    EXPECT_EQ(caller_.remount({.client = kOther, .segments = {}, .heard = kNextLife}).segments.size(), 0u);
    witness({{}, {kNextLife.life, 0}}, kReader, kNextLife);
    EXPECT_EQ(get("price"), StoreCode::kObjectNotFound) << "what it was told then, nobody knows";
    EXPECT_EQ(caller_.heartbeat(kOther).status, HeartbeatStatus::kOk) << "this one was there";
    EXPECT_EQ(report(kNode, kNow).segments[0].stale, 1u);
}

TEST_F(BehindTest, OneThatFollowedThatLifeIsBelieved) {
    witness({{}, {kNextLife.life, 0}}, kReader, kNextLife);
    EXPECT_EQ(report(kNode, kNextLife).segments[0].adopted, 1u);
    EXPECT_EQ(get("price"), StoreCode::kOk);
}

TEST_F(BehindTest, EveryFollowerKnowsOfALifeThatHasRemovedSomethingBeforeTheRemoverIsAnswered) {
    caller_.join(kNode, 1);
    caller_.join(kReader, 0);
    Following node(caller_.address(), kNode), reader(caller_.address(), kReader);
    ASSERT_TRUE(node.wait_complete());
    ASSERT_TRUE(reader.wait_complete());
    caller_.put(kNode, {"price"});
    EXPECT_FALSE(went_on(reader)) << "values that are there and new ones do not contradict each other";
    EXPECT_EQ(caller_.remove({"nobody knows it"}, false).codes[0], StoreCode::kObjectNotFound);
    ASSERT_TRUE(eventually([&] { return went_on(reader).has_value(); }));
    const HistoryPoint now = reader.updates().front().now;
    EXPECT_EQ(*went_on(reader), (HistoryPoint{now.life, 0}));
    EXPECT_GT(now.life, 0u);
    caller_.join(kLate, 0);
    Following late(caller_.address(), kLate);
    ASSERT_TRUE(late.wait_complete());
    EXPECT_TRUE(went_on(late)) << "who comes later is told at once";
}

TEST_F(BehindTest, EveryFollowerKnowsOfALifeThatHasLostAValueOfItsOwnAndComesAfterAnother) {
    caller_.remount({.client = kReader, .segments = {}, .heard = kNow});
    Following reader(caller_.address(), kReader);
    ASSERT_TRUE(reader.wait_complete());
    caller_.join(kNode, 1);
    Following node(caller_.address(), kNode);
    ASSERT_TRUE(node.wait_complete());
    caller_.put(kNode, {"price"});
    EXPECT_FALSE(went_on(reader));
    EXPECT_EQ(caller_.goodbye(kNode), StoreCode::kOk);
    EXPECT_TRUE(eventually([&] { return went_on(reader).has_value(); })) << "somebody may hold an older price, and tell the next master";
}

TEST_F(BehindTest, OnceItHasHeardAllFromUsLaterWitnessesChangeNothing) {
    witness({kNode, kNow});
    report(kNode, kThen);
    Following reader(caller_.address(), kReader);
    ASSERT_TRUE(reader.wait_complete());
    EXPECT_THAT(behind(reader), Contains(kNode)) << "should this master die, too";
    Following node(caller_.address(), kNode);
    ASSERT_TRUE(node.wait_complete());
    ASSERT_TRUE(hears_of_caught_up(reader));
    witness({kNode, kNow}, kLate);
    EXPECT_EQ(caller_.heartbeat(kNode).status, HeartbeatStatus::kOk);
}

TEST_F(BehindTest, OneWhoCameBackToTheSameMasterIsBelieved) {
    caller_.join(kNode, 1);
    {
        Following node(caller_.address(), kNode);
        ASSERT_TRUE(node.wait_complete());
        caller_.put(kNode, {"price"});
    }
    caller_.join(kReader, 0);
    Following reader(caller_.address(), kReader);
    ASSERT_TRUE(hears_of_behind(reader));
    EXPECT_EQ(report(kNode, reader.updates().front().now, "another").segments[0].code, StoreCode::kOk);
    EXPECT_EQ(get("price"), StoreCode::kOk) << "this master knows what became of it";
}

TEST(BehindClients, RemembersTheLatest) {
    BehindClients clients;
    for (uint64_t i = 1; i <= BehindClients::kMax + 1; ++i) EXPECT_TRUE(clients.add({{1, i}, kThen}));
    EXPECT_EQ(clients.all().size(), BehindClients::kMax);
    EXPECT_EQ(clients.since({1, 1}), HistoryPoint{});
    EXPECT_EQ(clients.since({1, 2}), kThen);
    EXPECT_FALSE(clients.add({{1, 2}, kThen}));
    EXPECT_TRUE(clients.add({{1, 2}, kNow})) << "later";
    EXPECT_FALSE(clients.add({{1, 2}, kThen}));
    EXPECT_EQ(clients.since({1, 2}), kNow);
    EXPECT_TRUE(clients.erase({1, 2}));
    EXPECT_FALSE(clients.erase({1, 2}));
    clients.clear();
    EXPECT_TRUE(clients.all().empty());
}

}  // namespace
}  // namespace mooncake::store
