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

constexpr ClientId kNode{1, 1}, kReader{3, 3}, kLate{4, 4};

std::unique_ptr<MasterServer> serve() {
    auto server = MasterServer::create({.core = {.client_ttl = 1h}, .threads = 2});
    MC_CHECK(server);
    (*server)->start();
    return std::move(*server);
}

class Behind : public ::testing::Test {
protected:
    std::vector<ClientId> named(Following& following, std::vector<ClientId> EventUpdate::*which) {
        std::vector<ClientId> clients;
        for (const EventUpdate& update : following.updates())
            for (const ClientId& client : update.*which) clients.push_back(client);
        return clients;
    }
    bool hears(Following& following, std::vector<ClientId> EventUpdate::*which) {
        return eventually([&] { return !named(following, which).empty(); });
    }
    /// The node reports one value that an earlier master has given out.
    RemountReply report(const ClientId& client, std::string_view key = "price") {
        const HeldObject object{.tenant = {}, .key = key, .group = {}, .offset = 0, .length = 100, .generation = 5, .checksum = 1};
        const HeldSegment held{.segment = Caller::segment(1), .objects = {&object, 1}, .writes = {}, .quarantined = {}, .exact = true};
        return caller_.remount({.client = client, .epoch = server_->epoch(), .segments = {&held, 1}});
    }
    StoreCode get(std::string key) { return caller_.get({std::move(key)}).items[0].code; }

    std::unique_ptr<MasterServer> server_ = serve();
    Caller caller_{format_text("127.0.0.1:{}", server_->port())};
};

TEST_F(Behind, ANodeWhoseStreamBreaksIsNamedToAllOthersUntilItHasHeardAllAgain) {
    caller_.join(kNode, 1);
    caller_.join(kReader, 0);
    Following reader(caller_.address(), kReader);
    ASSERT_TRUE(reader.wait_complete());
    {
        Following node(caller_.address(), kNode);
        ASSERT_TRUE(node.wait_complete());
        caller_.put(kNode, {"price"});
        EXPECT_THAT(named(reader, &EventUpdate::behind), IsEmpty());
    }
    ASSERT_TRUE(hears(reader, &EventUpdate::behind));
    EXPECT_THAT(named(reader, &EventUpdate::behind), ElementsAre(kNode));
    caller_.join(kLate, 0);
    Following late(caller_.address(), kLate);
    ASSERT_TRUE(late.wait_complete());
    EXPECT_THAT(named(late, &EventUpdate::behind), ElementsAre(kNode)) << "who comes later is told at once";
    Following node(caller_.address(), kNode);
    ASSERT_TRUE(node.wait_complete());
    ASSERT_TRUE(hears(reader, &EventUpdate::caught_up));
    EXPECT_THAT(named(reader, &EventUpdate::caught_up), ElementsAre(kNode));
}

TEST_F(Behind, WhoLendsNothingCannotBeBehind) {
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
        EXPECT_THAT(named(other, &EventUpdate::behind), IsEmpty());
    }
}

TEST_F(Behind, WhatItTellsOfAnEarlierMastersValuesIsNotBelieved) {
    const ClientId behind[] = {kNode};
    caller_.remount({.client = kReader, .segments = {}, .behind = behind});
    const auto reply = report(kNode);
    EXPECT_EQ(reply.segments[0].code, StoreCode::kOk) << "its memory is welcome";
    EXPECT_EQ(reply.segments[0].stale, 1u);
    EXPECT_EQ(get("price"), StoreCode::kObjectNotFound);
}

TEST_F(Behind, IfItWasBelievedBeforeAnybodySaidSoItsValuesGo) {
    EXPECT_EQ(report(kNode).segments[0].adopted, 1u);
    ASSERT_EQ(get("price"), StoreCode::kOk);
    const ClientId behind[] = {kNode};
    caller_.remount({.client = kReader, .segments = {}, .behind = behind});
    EXPECT_EQ(get("price"), StoreCode::kObjectNotFound) << "the one who said so does not read it";
    EXPECT_EQ(caller_.heartbeat(kNode).status, HeartbeatStatus::kNeedRemount);
    EXPECT_EQ(report(kNode).segments[0].stale, 1u);
    EXPECT_EQ(get("price"), StoreCode::kObjectNotFound);
}

TEST_F(Behind, OnceItHasHeardAllFromUsLaterWitnessesChangeNothing) {
    const ClientId behind[] = {kNode};
    caller_.remount({.client = kReader, .segments = {}, .behind = behind});
    report(kNode);
    Following reader(caller_.address(), kReader);
    ASSERT_TRUE(reader.wait_complete());
    EXPECT_THAT(named(reader, &EventUpdate::behind), Contains(kNode)) << "should this master die, too";
    Following node(caller_.address(), kNode);
    ASSERT_TRUE(node.wait_complete());
    ASSERT_TRUE(hears(reader, &EventUpdate::caught_up));
    caller_.remount({.client = kLate, .segments = {}, .behind = behind});
    EXPECT_EQ(caller_.heartbeat(kNode).status, HeartbeatStatus::kOk);
}

TEST_F(Behind, OneWhoCameBackToTheSameMasterIsBelieved) {
    caller_.join(kNode, 1);
    {
        Following node(caller_.address(), kNode);
        ASSERT_TRUE(node.wait_complete());
        caller_.put(kNode, {"price"});
    }
    caller_.join(kReader, 0);
    Following reader(caller_.address(), kReader);
    ASSERT_TRUE(hears(reader, &EventUpdate::behind));
    EXPECT_EQ(report(kNode, "another").segments[0].code, StoreCode::kOk);
    EXPECT_EQ(get("price"), StoreCode::kOk) << "this master knows what became of it";
}

TEST(BehindClients, RemembersTheLatest) {
    BehindClients clients;
    for (uint64_t i = 1; i <= BehindClients::kMax + 1; ++i) EXPECT_TRUE(clients.add({1, i}));
    EXPECT_EQ(clients.all().size(), BehindClients::kMax);
    EXPECT_FALSE(clients.contains({1, 1}));
    EXPECT_TRUE(clients.contains({1, 2}));
    EXPECT_FALSE(clients.add({1, 2}));
    EXPECT_TRUE(clients.erase({1, 2}));
    EXPECT_FALSE(clients.erase({1, 2}));
    clients.clear();
    EXPECT_TRUE(clients.all().empty());
}

}  // namespace
}  // namespace mooncake::store
