// SPDX-License-Identifier: Apache-2.0
#include "store/service/master_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>

#include "store/master/ops/object_ops.h"
#include "store/master/ops/task_ops.h"
#include "store/protocol/message_parts.h"
#include "store/protocol/testing/next_version.h"
#include "store/service/testing/served_master.h"

namespace mooncake::store {
namespace {

using namespace store::testing;
using ::testing::ElementsAre;

constexpr ClientId kNode{1, 1}, kOther{2, 2}, kReader{3, 3};

/// Its clients need not heartbeat.
std::unique_ptr<MasterServer> serve(MasterServerOptions options = {.core = {.client_ttl = 1h}, .threads = 2}) {
    auto server = MasterServer::create(std::move(options));
    MC_CHECK(server);
    (*server)->start();
    return std::move(*server);
}
std::string address_of(const MasterServer& server) { return format_text("127.0.0.1:{}", server.port()); }

std::vector<std::string> names(std::string_view prefix, int count) {
    std::vector<std::string> list;
    for (int i = 0; i < count; ++i) list.push_back(format_text("{} {}", prefix, i));
    return list;
}

class MasterServerTest : public ::testing::Test {
protected:
    std::unique_ptr<MasterServer> server_ = serve();
    Caller caller_{address_of(*server_)};
};

TEST_F(MasterServerTest, AClientOfTheNextVersionIsServed) {
    caller_.join(kNode, 1);
    parts::Builder builder;
    const auto text = builder->CreateString("from the future");
    const auto items = builder->CreateVectorOfStructs(std::vector<wire::PutItem>{wire::PutItem(100, 3, 0)});
    const auto texts = builder->CreateVector(std::vector<uint8_t>{'k', 'e', 'y'});
    const wire::Id client = parts::id_to_wire(kNode);
    wire::PutStartRequestBuilder table(*builder);
    table.add_client(&client);
    table.add_items(items);
    table.add_texts(texts);
    const auto answer = caller_.call(rpc::Method::kStorePutStart, builder.finish(finish_as_next_version(table, 8, text)));
    ASSERT_TRUE(answer) << answer.error().to_string();
    const auto started = decode_put_start_reply(*answer);
    ASSERT_TRUE(started);
    EXPECT_EQ(started->items.at(0).code, StoreCode::kOk);
    EXPECT_THAT(caller_.put_end(kNode, {"key"}).codes, ElementsAre(StoreCode::kOk));
}

TEST_F(MasterServerTest, AValueIsPutReadAndRemoved) {
    caller_.join(kNode, 1);
    const auto started = caller_.put_start(kNode, {"a", "b"});
    ASSERT_EQ(started.items.size(), 2u);
    EXPECT_EQ(started.items[0].code, StoreCode::kOk);
    EXPECT_EQ(started.items[0].replica_count, 1u);
    EXPECT_EQ(started.epoch, server_->epoch());
    EXPECT_GT(started.items[0].generation, 1'600'000'000'000'000'000u) << "above those of all earlier masters";
    EXPECT_THAT(caller_.exist({"a"}).results, ElementsAre(0));
    EXPECT_THAT(caller_.put_end(kNode, {"a", "b"}, 42).codes, ElementsAre(StoreCode::kOk, StoreCode::kOk));
    EXPECT_THAT(caller_.exist({"a", "b", "c", ""}).results, ElementsAre(1, 1, 0, 0));
    const auto got = caller_.get({"a", "nothing"});
    EXPECT_EQ(got.epoch, server_->epoch());
    EXPECT_EQ(got.lease, 10s);
    ASSERT_EQ(got.items.size(), 2u);
    EXPECT_EQ(got.items[0].checksum, 42u);
    EXPECT_EQ(got.items[0].length, 100u);
    EXPECT_EQ(got.items[0].generation, started.items[0].generation);
    EXPECT_EQ(got.items[1].code, StoreCode::kObjectNotFound);
    EXPECT_THAT(caller_.remove({"a", "c"}, false).codes, ElementsAre(StoreCode::kObjectHasLease, StoreCode::kObjectNotFound));
    EXPECT_THAT(caller_.remove({"a"}, true).codes, ElementsAre(StoreCode::kOk));
    EXPECT_THAT(caller_.exist({"a", "b"}).results, ElementsAre(0, 1));
}

TEST(MasterServerTenants, AlsoTheDefaultOneNeedsAQuotaToWrite) {
    MasterServerOptions options{.threads = 1};
    options.core.client_ttl = 1h;
    options.core.tenants = true;
    const auto server = serve(options);
    Caller caller(address_of(*server));
    caller.join(kNode, 1);
    const PutItem item{.key = "a", .length = 100};
    const auto put_start = [&] {
        const auto reply = caller.call(rpc::Method::kStorePutStart,
                                       encode_put_start_request({.client = kNode, .tenant = "default", .items = {&item, 1}}, false));
        return decode_put_start_reply(reply.value()).value().items.at(0).code;
    };
    EXPECT_EQ(put_start(), StoreCode::kTenantNotRegistered);
    server->master().run([](Transaction& transaction, Time) { return set_quota(transaction, "default", 1 << 20); });
    EXPECT_EQ(put_start(), StoreCode::kOk);
}

TEST_F(MasterServerTest, AWriteCanBeRevoked) {
    caller_.join(kNode, 1);
    const PutEndItem item{.key = "k", .generation = caller_.put_start(kNode, {"k"}).items.at(0).generation};
    const auto reply = caller_.call(rpc::Method::kStorePutRevoke,
                                    encode_put_revoke_request({.client = kNode, .request_id = 3, .tenant = {}, .items = {&item, 1}}));
    ASSERT_TRUE(reply);
    EXPECT_THAT(decode_codes_reply(*reply)->codes, ElementsAre(StoreCode::kOk));
    EXPECT_THAT(caller_.put_end(kNode, {"k"}).codes, ElementsAre(StoreCode::kObjectNotFound));
}

TEST_F(MasterServerTest, AReplicaCanBeClearedByItsWriter) {
    caller_.join(kNode, 1);
    caller_.put(kNode, {"k"});
    const std::string_view key = "k";
    const auto clear = [&](const ClientId& client) {
        const auto reply = caller_.call(
            rpc::Method::kStoreReplicaClear,
            encode_replica_clear_request({.client = client, .tenant = {}, .keys = {&key, 1}, .segment_name = {}}));
        return decode_codes_reply(reply.value()).value().codes;
    };
    EXPECT_THAT(clear(kOther), ElementsAre(StoreCode::kIllegalClient));
    EXPECT_THAT(clear(kNode), ElementsAre(StoreCode::kOk));
    EXPECT_THAT(caller_.exist({"k"}).results, ElementsAre(0));
}

TEST_F(MasterServerTest, KeysAreRemovedByPattern) {
    caller_.join(kNode, 1);
    caller_.put(kNode, names("alpha", 5000));
    caller_.put(kNode, names("beta", 10));
    EXPECT_EQ(caller_.remove_matching("a [0-9]$", false), 20) << "unanchored";
    EXPECT_EQ(caller_.remove_matching("^alpha", false), 4990);
    EXPECT_EQ(caller_.remove_matching("(unclosed", false), -600);
    EXPECT_EQ(caller_.remove_matching("a{1000}{1000}", false), -600) << "too costly";
    caller_.put(kNode, names("gamma", 3));
    caller_.get({"gamma 0"});
    EXPECT_EQ(caller_.remove_matching("", false), 2) << "what is leased stays";
    EXPECT_EQ(caller_.remove_matching("", true), 1);
}

TEST_F(MasterServerTest, SegmentsComeAndGo) {
    EXPECT_EQ(caller_.mount(kNode, Caller::segment(1)), StoreCode::kClientNotFound);
    caller_.join(kNode, 1);
    EXPECT_EQ(caller_.mount(kNode, {}), StoreCode::kInvalidParams);
    caller_.put(kNode, {"k"});
    const auto list = caller_.segments();
    EXPECT_EQ(list.epoch, server_->epoch());
    ASSERT_EQ(list.segments.size(), 1u);
    EXPECT_EQ(list.segments[0].segment.name, "host:1");
    EXPECT_EQ(list.segments[0].client, kNode);
    EXPECT_GT(list.segments[0].used_bytes, 0u);
    EXPECT_EQ(list.segments[0].number, caller_.get({"k"}).replicas[0].segment);
    const auto unmount = [&](const ClientId& client) {
        const auto reply = caller_.call(rpc::Method::kStoreUnmount,
                                        encode_unmount_request({.client = client, .segment = Caller::segment(1).id, .grace = Duration(0)}));
        return decode_code_reply(reply.value()).value();
    };
    EXPECT_EQ(unmount(kOther), StoreCode::kIllegalClient);
    EXPECT_EQ(unmount(kNode), StoreCode::kOk);
    EXPECT_EQ(unmount(kNode), StoreCode::kSegmentNotFound);
    EXPECT_THAT(caller_.exist({"k"}).results, ElementsAre(0));
}

TEST_F(MasterServerTest, HeartbeatsTellTheEpochAndWhoIsUnknown) {
    EXPECT_EQ(caller_.heartbeat(kNode).status, HeartbeatStatus::kNeedRemount);
    EXPECT_EQ(caller_.heartbeat(kNode).epoch, server_->epoch());
    EXPECT_EQ(caller_.heartbeat(kNode).client_ttl, 1h);
    caller_.join(kNode, 1);
    EXPECT_EQ(caller_.heartbeat(kNode).status, HeartbeatStatus::kOk);
    const std::vector<SegmentId> failed{Caller::segment(1).id};
    const auto reply = caller_.call(rpc::Method::kStoreReportFailures, encode_failure_report({.client = kNode, .segments = failed}));
    EXPECT_EQ(decode_code_reply(reply.value()), StoreCode::kOk);
    EXPECT_EQ(caller_.goodbye(kNode), StoreCode::kOk);
    EXPECT_EQ(caller_.goodbye(kNode), StoreCode::kClientNotFound);
    EXPECT_EQ(caller_.heartbeat(kNode).status, HeartbeatStatus::kNeedRemount);
}

TEST_F(MasterServerTest, TasksAreTakenAndAskedFor) {
    caller_.join(kNode, 1);
    caller_.join(kOther, 2);
    caller_.put(kNode, {"k"});
    const auto place = caller_.get({"k"}).replicas.at(0).segment;
    const auto create = [&](std::string_view key, const std::string& target) {
        const auto created = caller_.call(rpc::Method::kStoreCreateTask,
                                          encode_task_request({.type = TaskType::kCopy, .key = key, .targets = {target}}));
        return decode_task_reply(created.value()).value();
    };
    EXPECT_EQ(create("missing", "host:1").code, StoreCode::kObjectNotFound);
    EXPECT_EQ(create("k", "nowhere:1").code, StoreCode::kInvalidParams);
    const bool on_first = caller_.segments().segments.at(0).number == place;
    const TaskReply task = create("k", on_first ? "host:2" : "host:1");
    ASSERT_EQ(task.code, StoreCode::kOk);
    const auto info = decode_task_info(caller_.call(rpc::Method::kStoreQueryTask, encode_task_query(task.task)).value());
    EXPECT_EQ(info->id, task.task);
    EXPECT_GT(info->created_ms, 0u);
    EXPECT_EQ(caller_.call(rpc::Method::kStoreQueryTask, encode_task_query({1, 2})).error().code(), Code::kNotFound);
    EXPECT_EQ(decode_code_reply(caller_.call(rpc::Method::kStoreEndTask, encode_task_end({})).value()), StoreCode::kTaskNotFound);
}

TEST_F(MasterServerTest, NonsenseIsRefusedByEveryMethod) {
    for (auto method = static_cast<uint16_t>(rpc::Method::kStoreExist); method <= static_cast<uint16_t>(rpc::Method::kStoreReplicasGone);
         ++method) {
        if (method == static_cast<uint16_t>(rpc::Method::kStoreSegments)) continue;  // has no request
        for (const size_t size : {0, 3, 100}) {
            const auto reply = caller_.call(static_cast<rpc::Method>(method), rpc::Bytes(size, std::byte{0xff}));
            ASSERT_FALSE(reply) << method;
            EXPECT_EQ(reply.error().code(), Code::kCorrupt) << method;
        }
    }
    EXPECT_EQ(caller_.call(static_cast<rpc::Method>(999), {}).error().code(), Code::kNotSupported);
    EXPECT_EQ(caller_.heartbeat(kNode).status, HeartbeatStatus::kNeedRemount) << "and it goes on serving";
}

TEST_F(MasterServerTest, ABatchLongerThanOneHoldOfTheLockIsAnsweredInOrder) {
    caller_.join(kNode, 1);
    const auto keys = names("k", 10'000);
    caller_.put(kNode, keys);
    auto asked = keys;
    asked.insert(asked.begin() + 5000, "missing");
    const auto exist = caller_.exist(asked);
    ASSERT_EQ(exist.results.size(), 10'001u);
    for (size_t i = 0; i < asked.size(); ++i) ASSERT_EQ(exist.results[i], i == 5000 ? 0 : 1) << i;
    const auto got = caller_.get(asked);
    ASSERT_EQ(got.items.size(), 10'001u);
    std::set<uint64_t> places;
    for (size_t i = 0; i < asked.size(); ++i) {
        ASSERT_EQ(got.items[i].code, i == 5000 ? StoreCode::kObjectNotFound : StoreCode::kOk) << i;
        if (i != 5000) places.insert(got.replicas[got.items[i].first_replica].offset);
    }
    EXPECT_EQ(places.size(), 10'000u);
    EXPECT_EQ(caller_.remove(keys, true).codes, std::vector<StoreCode>(10'000, StoreCode::kOk));
}

TEST_F(MasterServerTest, AReportInPartsIsAdoptedAndOneForAnotherLifeIsNot) {
    std::vector<std::string> keys = names("held", 5000);
    std::vector<HeldObject> objects;
    for (size_t i = 0; i < keys.size(); ++i)
        objects.push_back(
            {.tenant = {}, .key = keys[i], .group = {}, .offset = i * 4096, .length = 100, .generation = i + 1, .checksum = i});
    const HeldSegment held{.segment = Caller::segment(1), .objects = objects, .writes = {}, .quarantined = {}, .exact = true};
    const auto refused = caller_.remount({.client = kNode, .epoch = server_->epoch() + 1, .segments = {&held, 1}});
    ASSERT_EQ(refused.segments.size(), 1u);
    EXPECT_EQ(refused.segments[0].code, StoreCode::kInvalidVersion);
    EXPECT_EQ(caller_.heartbeat(kNode).status, HeartbeatStatus::kNeedRemount);
    const auto reply = caller_.remount({.client = kNode, .epoch = server_->epoch(), .segments = {&held, 1}});
    ASSERT_EQ(reply.segments.size(), 1u);
    EXPECT_EQ(reply.segments[0].code, StoreCode::kOk);
    EXPECT_EQ(reply.segments[0].adopted, 5000u);
    const auto got = caller_.get(keys);
    for (size_t i = 0; i < keys.size(); ++i) {
        ASSERT_EQ(got.items[i].code, StoreCode::kOk);
        ASSERT_EQ(got.items[i].checksum, i);
    }
    caller_.put(kNode, {"new"});
}

TEST_F(MasterServerTest, ManyClientsAtOnceGetWhatTheyPut) {
    std::vector<std::jthread> threads;
    for (uint64_t thread = 0; thread < 6; ++thread) {
        threads.emplace_back([&, thread] {
            Caller caller(address_of(*server_));
            const ClientId client{100, thread};
            caller.join(client, 100 + thread);
            Following following(address_of(*server_), client);
            for (int round = 0; round < 30; ++round) {
                const auto keys = names(format_text("{} {}", thread, round), 20);
                caller.put(client, keys);
                const auto got = caller.get(keys);
                for (const GetItem& item : got.items) ASSERT_EQ(item.code, StoreCode::kOk);
                ASSERT_EQ(caller.remove(keys, true).codes, std::vector<StoreCode>(20, StoreCode::kOk));
                ASSERT_EQ(caller.heartbeat(client).status, HeartbeatStatus::kOk);
            }
            ASSERT_TRUE(following.wait_complete());
            ASSERT_FALSE(following.end());
        });
    }
    threads.clear();
    for (uint64_t thread = 0; thread < 6; ++thread) EXPECT_EQ(caller_.goodbye({100, thread}), StoreCode::kOk);
    EXPECT_TRUE(caller_.segments().segments.empty());
    EXPECT_TRUE(eventually([&] { return server_->followers() == 0; }));
}

TEST(MasterServer, MissesAClientByItsHeartbeatsAlone) {
    const auto server = serve({.core = {.client_ttl = 200ms}, .threads = 1});
    Caller caller(address_of(*server));
    caller.join(kNode, 1);
    caller.put(kNode, {"k"});
    {
        Caller another(address_of(*server));  // its connection ends, the client does not
        EXPECT_EQ(another.heartbeat(kNode).status, HeartbeatStatus::kOk);
    }
    EXPECT_EQ(caller.heartbeat(kNode).status, HeartbeatStatus::kOk);
    EXPECT_TRUE(eventually([&] { return caller.segments().segments.empty(); }));
    EXPECT_EQ(caller.heartbeat(kNode).status, HeartbeatStatus::kNeedRemount);
    EXPECT_THAT(caller.exist({"k"}).results, ElementsAre(0));
}

TEST(MasterServer, SettlesWhenItsFollowersHaveAcknowledged) {
    const auto server = serve({.core = {.client_ttl = 1h}, .stream = {.acknowledge_timeout = 1h}, .threads = 2});
    Caller caller(address_of(*server));
    server->settle();  // nothing has changed
    caller.join(kNode, 1);
    Following following(caller.address(), kNode, /*acknowledges=*/false);
    ASSERT_TRUE(following.wait_complete());
    caller.put(kNode, {"k"});
    caller.get({"k"});
    server->master().run([](Transaction& transaction, Time now) {
        const std::string_view key = "k";
        return remove(transaction, {.tenant = {}, .keys = {&key, 1}, .force = true}, now).codes[0];
    });
    std::atomic<bool> settled = false;
    std::jthread waiter([&] {
        server->settle();
        settled = true;
    });
    uint64_t told = 0;
    EXPECT_TRUE(eventually([&] {
        for (const EventUpdate& one : following.updates())
            if (!one.changed.empty()) told = one.sequence;
        return told != 0;
    }));
    EXPECT_FALSE(settled);
    following.acknowledge(told);
    EXPECT_TRUE(eventually([&] { return settled.load(); }));
}

TEST(MasterServer, RefusesASecondClientUnderTheNameOfALivingOne) {
    const auto server = serve();
    Caller caller(address_of(*server));
    caller.join(kNode, 1);
    auto following = std::make_unique<Following>(caller.address(), kNode);
    ASSERT_TRUE(following->wait_complete());
    caller.remount({.client = kOther, .segments = {}});
    SegmentSpec namesake = Caller::segment(2);
    namesake.name = Caller::segment(1).name;
    EXPECT_EQ(caller.heartbeat(kNode).status, HeartbeatStatus::kOk);
    EXPECT_EQ(caller.mount(kOther, namesake), StoreCode::kSegmentAlreadyExists);
    EXPECT_EQ(caller.heartbeat(kNode).status, HeartbeatStatus::kOk);
    following.reset();  // it dies, and its connection with it
    EXPECT_TRUE(eventually([&] { return caller.mount(kOther, namesake) == StoreCode::kOk; }));
    EXPECT_EQ(caller.heartbeat(kNode).status, HeartbeatStatus::kNeedRemount);
}

TEST(MasterServer, EvictsByItselfAboveTheWatermark) {
    const auto server = serve({.core = {.high_watermark = 0.5, .evict_ahead = true, .client_ttl = 1h}, .threads = 1});
    Caller caller(address_of(*server));
    caller.remount({.client = kNode, .segments = {}});
    ASSERT_EQ(caller.mount(kNode, Caller::segment(1, 1 << 20)), StoreCode::kOk);
    for (int i = 0; i < 14; ++i) {
        caller.put_start(kNode, {format_text("k {}", i)}, false, 64 << 10);
        caller.put_end(kNode, {format_text("k {}", i)});
    }
    EXPECT_TRUE(eventually([&] { return caller.segments().segments.at(0).used_bytes <= 512 << 10; }));
}

TEST(MasterServer, ASecondOneOnTheSamePortIsRefusedAndAStoppedOneGivesItBack) {
    auto first = serve();
    const uint16_t port = first->port();
    EXPECT_FALSE(MasterServer::create({.port = port}));
    first->stop();
    first->stop();
    first.reset();
    const auto second = serve({.port = port});
    EXPECT_EQ(second->port(), port);
}

TEST(MasterServer, EveryLifeHasAnotherEpochAndKnowsNobody) {
    auto first = serve();
    const uint16_t port = first->port();
    const uint64_t epoch = first->epoch();
    Caller caller(address_of(*first));
    caller.join(kNode, 1);
    caller.put(kNode, {"k"});
    first.reset();
    const auto second = serve({.port = port});
    EXPECT_NE(second->epoch(), epoch);
    EXPECT_EQ(Caller(address_of(*second)).heartbeat(kNode).status, HeartbeatStatus::kNeedRemount);
}

TEST(MasterServer, StopsWithCallsInFlight) {
    auto server = serve();
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < 4; ++thread) {
        threads.emplace_back([&, address = address_of(*server)](const std::stop_token& stop) {
            const auto client = rpc::Client::create({});
            const std::vector<std::string_view> keys(100, "k");
            const auto body = encode_keys_request({.tenant = {}, .keys = keys, .unreachable = {}});
            while (!stop.stop_requested())
                if (!client->call(address, rpc::Method::kStoreExist, body, soon())) return;
        });
    }
    Caller caller(address_of(*server));
    caller.join(kNode, 1);
    Following following(address_of(*server), kNode);
    ASSERT_TRUE(following.wait_complete());
    server->stop();
    ASSERT_TRUE(following.wait_end());
    EXPECT_EQ(following.end()->code(), Code::kUnavailable);
}

}  // namespace
}  // namespace mooncake::store
