// SPDX-License-Identifier: Apache-2.0
#include "store/member/master_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <future>
#include <map>
#include <thread>

#include "base/thread_annotations.h"
#include "rpc/rpc.h"
#include "store/protocol/message_parts.h"
#include "store/protocol/messages.h"
#include "store/protocol/testing/next_version.h"

namespace mooncake::store {

namespace {

using rpc::Bytes;
using rpc::Method;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr ClientId kClient{5, 6};
Deadline soon() { return Deadline::after(20s); }

/// The master's end of the line. Requests without an answer are kept.
class Desk {
public:
    using Answer = std::function<Bytes(std::span<const std::byte> body)>;
    using Held = std::unique_ptr<rpc::Responder>;

    explicit Desk(uint16_t port = 0) {
        auto server = rpc::Server::create({.port = port, .message_bytes_max = 64 << 20, .hello = {.incarnation = Incarnation::random()}});
        MC_CHECK(server.has_value());
        server_ = std::move(*server);
        for (auto method = static_cast<uint16_t>(Method::kStoreExist); method <= static_cast<uint16_t>(Method::kStoreEndTask); ++method)
            server_->handle(static_cast<Method>(method), [this, method](std::span<const std::byte> body, Held responder) {
                take(static_cast<Method>(method), body, std::move(responder));
            });
        server_->start();
    }
    std::string address() const { return format_text("127.0.0.1:{}", server_->port()); }
    uint16_t port() const { return server_->port(); }
    void stop() { server_->stop(); }

    void answer(Method method, Answer answer) {
        Lock lock(mutex_);
        answers_[method] = std::move(answer);
    }
    Held held(Method method) MC_NO_THREAD_ANALYSIS {
        std::unique_lock lock(mutex_);
        MC_CHECK(changed_.wait_for(lock, 20s, [&]() MC_NO_THREAD_ANALYSIS { return held_[method] != nullptr; }));
        return std::move(held_[method]);
    }

private:
    void take(Method method, std::span<const std::byte> body, Held responder) {
        Lock lock(mutex_);
        const auto found = answers_.find(method);
        if (found != answers_.end()) return responder->reply(found->second(body));
        held_[method] = std::move(responder);
        changed_.notify_all();
    }
    Mutex mutex_;
    std::condition_variable_any changed_;
    std::map<Method, Answer> answers_ MC_GUARDED_BY(mutex_);
    std::map<Method, Held> held_ MC_GUARDED_BY(mutex_);
    std::unique_ptr<rpc::Server> server_;
};

/// An event stream, and what it said.
class Follower {
public:
    MasterApi::EventStream stream() {
        return {.on_update =
                    [this](const EventView& update) {
                        Lock lock(mutex_);
                        sequences_.push_back(update.sequence);
                        changed_.notify_all();
                    },
                .on_end = [this](const Error& why) { end_.set_value(why); }};
    }
    bool wait_for(size_t count) MC_NO_THREAD_ANALYSIS {
        std::unique_lock lock(mutex_);
        return changed_.wait_for(lock, 20s, [&]() MC_NO_THREAD_ANALYSIS { return sequences_.size() >= count; });
    }
    std::vector<uint64_t> sequences() {
        Lock lock(mutex_);
        return sequences_;
    }
    Error end() {
        auto future = end_.get_future();
        MC_CHECK(future.wait_for(20s) == std::future_status::ready);
        return future.get();
    }

private:
    Mutex mutex_;
    std::condition_variable_any changed_;
    std::vector<uint64_t> sequences_ MC_GUARDED_BY(mutex_);
    std::promise<Error> end_;
};

class MasterLinkTest : public ::testing::Test {
protected:
    Desk desk_;
    std::unique_ptr<MasterApi> master_ = connect_master({.address = desk_.address(), .incarnation = Incarnation::random()});
};

}  // namespace

TEST_F(MasterLinkTest, EveryCallReachesItsMethodAndBringsItsAnswer) {
    const std::vector<std::string_view> keys{"a", "b"};
    desk_.answer(Method::kStoreExist, [](auto body) {
        EXPECT_EQ(decode_keys_request(body)->keys.size(), 2U);
        return encode_exist_reply({.results = {1, 0}, .soft_lease = 3s});
    });
    desk_.answer(Method::kStoreGetReplicas, [](auto) {
        return encode_get_reply({.items = {{.length = 4}, {.length = 5}}, .lease = 2s, .epoch = 9});
    });
    desk_.answer(Method::kStorePutStart, [](auto body) {
        const auto request = decode_put_start_request(body);
        EXPECT_TRUE(request->replace);
        return encode_put_start_reply({.items = {{.generation = 77}}, .epoch = 9});
    });
    for (const Method method : {Method::kStorePutEnd, Method::kStorePutRevoke, Method::kStoreRemove, Method::kStoreReplicaClear})
        desk_.answer(method, [](auto) { return encode_codes_reply({.codes = {StoreCode::kOk, StoreCode::kObjectNotFound}}); });
    desk_.answer(Method::kStoreRemoveMatching, [](auto) { return encode_remove_matching_reply(42); });
    EXPECT_THAT(master_->exist({.tenant = "t", .keys = keys}, soon())->results, ElementsAre(1, 0));
    EXPECT_EQ(master_->get_replicas({.tenant = "t", .keys = keys}, soon())->items[1].length, 5U);
    const PutItem item{.key = "a", .length = 4};
    EXPECT_EQ(master_->put_start({.client = kClient, .items = {&item, 1}}, true, soon())->items[0].generation, 77U);
    const std::vector<PutEndItem> ends{{.key = "a"}, {.key = "b"}};
    EXPECT_EQ(master_->put_end({.client = kClient, .items = ends}, soon())->codes[1], StoreCode::kObjectNotFound);
    EXPECT_EQ(master_->put_revoke({.client = kClient, .items = ends}, soon())->codes[1], StoreCode::kObjectNotFound);
    EXPECT_EQ(master_->remove({.keys = keys}, soon())->codes[1], StoreCode::kObjectNotFound);
    EXPECT_EQ(master_->replica_clear({.client = kClient, .keys = keys}, soon())->codes[1], StoreCode::kObjectNotFound);
    EXPECT_EQ(*master_->remove_matching("t", ".*", false, soon()), 42);
}

TEST_F(MasterLinkTest, LivenessAndTasksToo) {
    for (const Method method :
         {Method::kStoreMount, Method::kStoreUnmount, Method::kStoreGoodbye, Method::kStoreReportFailures, Method::kStoreEndTask})
        desk_.answer(method, [](auto) { return encode_code_reply(StoreCode::kSegmentNotFound); });
    desk_.answer(Method::kStorePing, [](auto body) {
        EXPECT_EQ(*decode_client_request(body), kClient);
        return encode_heartbeat_reply({.epoch = 3, .client_ttl = 10s});
    });
    desk_.answer(Method::kStoreRemount, [](auto body) {
        EXPECT_EQ(decode_remount_request(body)->request.epoch, 3U);
        return encode_remount_reply({.segments = {{.adopted = 8}}});
    });
    desk_.answer(Method::kStoreSegments, [](auto) { return encode_segments_reply({.epoch = 3}); });
    desk_.answer(Method::kStoreCreateTask, [](auto) { return encode_task_reply({.task = {1, 2}}); });
    desk_.answer(Method::kStoreQueryTask, [](auto) { return encode_task_info({.id = {1, 2}}); });
    EXPECT_EQ(*master_->mount({.client = kClient}, soon()), StoreCode::kSegmentNotFound);
    EXPECT_EQ(*master_->unmount({.client = kClient}, soon()), StoreCode::kSegmentNotFound);
    EXPECT_EQ(*master_->goodbye(kClient, soon()), StoreCode::kSegmentNotFound);
    EXPECT_EQ(*master_->report_failures({.client = kClient}, soon()), StoreCode::kSegmentNotFound);
    EXPECT_EQ(*master_->end_task({.client = kClient}, soon()), StoreCode::kSegmentNotFound);
    EXPECT_EQ(master_->heartbeat(kClient, soon())->epoch, 3U);
    const HeldSegment held{.segment = {.id = {1, 1}, .name = "n"}};
    EXPECT_EQ(master_->remount({.client = kClient, .epoch = 3, .segments = {&held, 1}}, soon())->segments[0].adopted, 8U);
    EXPECT_EQ(master_->segments(soon())->epoch, 3U);
    EXPECT_EQ(master_->create_task({}, soon())->task, TaskId(1, 2));
    EXPECT_EQ(master_->query_task({1, 2}, soon())->id, TaskId(1, 2));
}

TEST_F(MasterLinkTest, AnAnswerOfTheWrongLengthOrWithoutSenseIsCorrupt) {
    const std::vector<std::string_view> keys{"a", "b"};
    desk_.answer(Method::kStoreExist, [](auto) { return encode_exist_reply({.results = {1}}); });
    desk_.answer(Method::kStoreRemove, [](auto) { return Bytes(40, std::byte{0xee}); });
    EXPECT_EQ(master_->exist({.keys = keys}, soon()).error().code(), Code::kCorrupt);
    EXPECT_EQ(master_->remove({.keys = keys}, soon()).error().code(), Code::kCorrupt);
}

TEST_F(MasterLinkTest, ABatchOfAnyLengthIsAskedInPartsThatAMasterTakes) {
    const std::vector<std::string_view> keys(2 * kKeysMax + 5, "k");
    size_t calls = 0;
    desk_.answer(Method::kStoreExist, [&](auto body) {
        ExistReply reply{.soft_lease = 1s + std::chrono::seconds(++calls)};
        reply.results.resize(decode_keys_request(body)->keys.size(), static_cast<int32_t>(calls));
        return encode_exist_reply(reply);
    });
    desk_.answer(Method::kStoreRemove, [](auto body) {
        CodesReply reply;
        reply.codes.resize(decode_remove_request(body)->keys.size(), StoreCode::kObjectHasLease);
        return encode_codes_reply(reply);
    });
    const auto there = master_->exist({.keys = keys}, soon());
    ASSERT_TRUE(there) << there.error().to_string();
    ASSERT_EQ(there->results.size(), keys.size());
    EXPECT_EQ(there->results.front(), 1);
    EXPECT_EQ(there->results.back(), static_cast<int32_t>(calls));
    EXPECT_EQ(there->soft_lease, 2s) << "the shortest one";
    EXPECT_GT(calls, 2u);
    const auto removed = master_->remove({.keys = keys}, soon());
    ASSERT_TRUE(removed) << removed.error().to_string();
    EXPECT_EQ(removed->codes.size(), keys.size());
    EXPECT_EQ(removed->codes.back(), StoreCode::kObjectHasLease);
}

TEST_F(MasterLinkTest, TheAnswersToPartsOfAGetAndAPutFitTogether) {
    constexpr size_t kKeys = (size_t{1} << 18) + 7;
    uint64_t epoch = 9;
    desk_.answer(Method::kStoreGetReplicas, [&](auto body) {
        GetReply reply{.lease = 1s, .epoch = epoch};
        const auto received = decode_keys_request(body);
        for (size_t i = 0; i < received->keys.size(); ++i) {
            reply.items.push_back({.first_replica = static_cast<uint32_t>(i), .replica_count = 1});
            reply.replicas.push_back({.segment = 1, .offset = reply.items.size()});
        }
        return encode_get_reply(reply);
    });
    const std::vector<std::string_view> keys(kKeys, "k");
    const auto found = master_->get_replicas({.keys = keys}, soon());
    ASSERT_TRUE(found) << found.error().to_string();
    ASSERT_EQ(found->items.size(), kKeys);
    EXPECT_EQ(found->items.back().first_replica, kKeys - 1);
    EXPECT_EQ(found->replicas.back().offset, 7u) << "of the second part";

    desk_.answer(Method::kStorePutStart, [&](auto body) {
        const auto received = decode_put_start_request(body);
        PutStartReply reply{.epoch = epoch};
        for (const PutItem& item : received->items) {
            const auto position = static_cast<uint32_t>(reply.items.size());
            reply.items.push_back({.first_replica = position, .replica_count = 1, .generation = item.length});
            reply.replicas.push_back({.segment = 1, .offset = item.length});
        }
        return encode_put_start_reply(reply);
    });
    std::vector<PutItem> items(kKeys, {.key = "k"});
    for (size_t i = 0; i < items.size(); ++i) items[i].length = i + 1;
    items.front().group = items.back().group = "g";
    const auto started = master_->put_start({.client = kClient, .request_id = 1, .config = {}, .items = items}, false, soon());
    ASSERT_TRUE(started) << started.error().to_string();
    for (size_t i = 0; i < items.size(); ++i) {
        ASSERT_EQ(started->items[i].generation, i + 1);
        ASSERT_EQ(started->replicas[started->items[i].first_replica].offset, i + 1);
    }
}

TEST_F(MasterLinkTest, NumbersOfTwoLivesOfAMasterAreNotMixed) {
    uint64_t epoch = 1;
    desk_.answer(Method::kStoreGetReplicas, [&](auto body) {
        GetReply reply{.epoch = epoch++};
        reply.items.resize(decode_keys_request(body)->keys.size(), {.code = StoreCode::kObjectNotFound});
        return encode_get_reply(reply);
    });
    const std::vector<std::string_view> keys(kKeysMax + 1, "k");
    const auto found = master_->get_replicas({.keys = keys}, soon());
    ASSERT_FALSE(found);
    EXPECT_EQ(found.error().code(), Code::kUnavailable);
}

TEST_F(MasterLinkTest, AWriteThatCannotBeExpressedIsRefusedWithoutAsking) {
    const PutItem item{.key = "k", .length = 1};
    const WriteConfig config{.preferred_segments = {std::string(kNameBytesMax + 1, 'a')}};
    const auto started = master_->put_start({.client = kClient, .config = config, .items = {&item, 1}}, false, soon());
    ASSERT_TRUE(started) << started.error().to_string();
    EXPECT_EQ(started->items.at(0).code, StoreCode::kInvalidParams);
}

TEST_F(MasterLinkTest, NamesThatNoSegmentHasAreRefusedWithoutAsking) {
    const std::string name(kNameBytesMax + 1, 'a');
    const std::vector<std::string_view> keys{"k", "l"};
    const auto cleared = master_->replica_clear({.client = kClient, .keys = keys, .segment_name = name}, soon());
    ASSERT_TRUE(cleared) << cleared.error().to_string();
    EXPECT_EQ(cleared->codes, std::vector<StoreCode>(2, StoreCode::kInvalidParams));
    for (const TaskRequest& request :
         {TaskRequest{.key = "k", .targets = {name}}, TaskRequest{.key = "k", .source = name, .targets = {"a"}},
          TaskRequest{.key = "k", .targets = std::vector<std::string>(kTaskTargetsMax + 1, "a")}}) {
        const auto created = master_->create_task(request, soon());
        ASSERT_TRUE(created) << created.error().to_string();
        EXPECT_EQ(created->code, StoreCode::kInvalidParams);
    }
}

TEST_F(MasterLinkTest, FollowsAnEventStreamToItsLastEvent) {
    Follower follower;
    ASSERT_NE(master_->follow(kClient, follower.stream()), 0U);
    const auto stream = desk_.held(Method::kStoreFollow);
    for (uint64_t i = 1; i <= 1000; ++i) ASSERT_TRUE(stream->part(encode_event_update({.sequence = i})));
    desk_.stop();
    EXPECT_TRUE(rpc::peer_closed(follower.end()));
    EXPECT_EQ(follower.sequences().size(), 1000U);
    EXPECT_EQ(follower.sequences().back(), 1000U);
}

TEST_F(MasterLinkTest, AnEventStreamCanBeGivenUp) {
    Follower follower;
    const uint64_t number = master_->follow(kClient, follower.stream());
    const auto stream = desk_.held(Method::kStoreFollow);
    ASSERT_TRUE(stream->part(encode_event_update({.sequence = 1})));
    ASSERT_TRUE(follower.wait_for(1));
    master_->unfollow(number);
    EXPECT_EQ(follower.end().code(), Code::kCancelled);
    master_->unfollow(number);
}

TEST_F(MasterLinkTest, AnEventStreamThatIsRefusedSaysWhy) {
    Follower follower;
    master_->follow(kClient, follower.stream());
    desk_.held(Method::kStoreFollow)->fail(Error(Code::kNotFound, "who are you"));
    EXPECT_EQ(follower.end().code(), Code::kNotFound);
}

TEST_F(MasterLinkTest, AnEventStreamThatMakesNoSenseIsEnded) {
    Follower follower;
    master_->follow(kClient, follower.stream());
    const auto stream = desk_.held(Method::kStoreFollow);
    ASSERT_TRUE(stream->part(encode_event_update({.sequence = 1})));
    ASSERT_TRUE(stream->part(Bytes(100, std::byte{0xee})));
    stream->part(encode_event_update({.sequence = 2}));
    EXPECT_EQ(follower.end().code(), Code::kCorrupt);
    EXPECT_THAT(follower.sequences(), ElementsAre(1U)) << "what follows an event that was not understood is not heard";
}

TEST_F(MasterLinkTest, AcknowledgesWithoutWaiting) {
    master_->acknowledge(kClient, 12);
    EXPECT_NE(desk_.held(Method::kStoreAcknowledge), nullptr);
}

TEST_F(MasterLinkTest, HeartbeatsPassWhileCallsAboutObjectsAreStuck) {
    desk_.answer(Method::kStorePing, [](auto) { return encode_heartbeat_reply({.epoch = 3}); });
    std::jthread stuck([&] { EXPECT_EQ(master_->exist({}, soon()).error().code(), Code::kCancelled); });
    const auto held = desk_.held(Method::kStoreExist);
    EXPECT_TRUE(master_->heartbeat(kClient, soon()));
    master_->stop_calls();
    stuck.join();
    EXPECT_EQ(master_->exist({}, soon()).error().code(), Code::kCancelled);
    EXPECT_TRUE(master_->heartbeat(kClient, soon())) << "only the calls about objects were stopped";
}

TEST_F(MasterLinkTest, StoppingEndsHeartbeatsAndTheFeed) {
    Follower follower;
    master_->follow(kClient, follower.stream());
    std::jthread stuck([&] { EXPECT_EQ(master_->heartbeat(kClient, soon()).error().code(), Code::kCancelled); });
    const auto answer = desk_.held(Method::kStorePing), stream = desk_.held(Method::kStoreFollow);
    master_->stop_liveness();
    EXPECT_EQ(follower.end().code(), Code::kCancelled);
}

TEST_F(MasterLinkTest, AMasterThatIsGoneAndComesBackIsReachedAgain) {
    desk_.answer(Method::kStorePing, [](auto) { return encode_heartbeat_reply({.epoch = 3}); });
    ASSERT_TRUE(master_->heartbeat(kClient, soon()));
    desk_.stop();
    EXPECT_EQ(master_->heartbeat(kClient, soon()).error().code(), Code::kUnavailable);
    Desk again(desk_.port());
    again.answer(Method::kStorePing, [](auto) { return encode_heartbeat_reply({.epoch = 4}); });
    Result<HeartbeatReply> reply = fail(Code::kUnavailable, "not asked");
    for (const Deadline patience = soon(); !reply && !patience.passed();) reply = master_->heartbeat(kClient, soon());
    ASSERT_TRUE(reply) << reply.error().to_string();
    EXPECT_EQ(reply->epoch, 4U);
}

TEST(MasterLink, UnderstandsAMasterOfTheNextVersion) {
    Desk desk;
    desk.answer(Method::kStoreGetReplicas, [](std::span<const std::byte>) {
        parts::Builder builder;
        const auto text = builder->CreateString("from the future");
        const auto items = builder->CreateVectorOfStructs(std::vector<wire::GetItem>{wire::GetItem(100, 2, 3, 0, 1, 0)});
        const auto replicas = builder->CreateVectorOfStructs(std::vector<wire::Replica>{wire::Replica(4, 5)});
        wire::GetReplyBuilder table(*builder);
        table.add_items(items);
        table.add_replicas(replicas);
        table.add_epoch(6);
        return builder.finish(testing::finish_as_next_version(table, 4, text));
    });
    const auto master = connect_master({.address = desk.address(), .incarnation = Incarnation::random()});
    const std::string_view key = "k";
    const auto reply = master->get_replicas({.tenant = {}, .keys = {&key, 1}, .unreachable = {}}, soon());
    ASSERT_TRUE(reply) << reply.error().to_string();
    EXPECT_EQ(reply->epoch, 6u);
    ASSERT_EQ(reply->items.size(), 1u);
    EXPECT_EQ(reply->items[0].length, 100u);
    EXPECT_THAT(reply->replicas, ElementsAre(ReplicaLocation{4, 5}));
}

TEST(MasterAddress, MustBeAHostAndAPort) {
    for (const std::string address : {"etcd://10.0.0.1:2379", "redis://h:1", "", "host", "host:0", "host:99999", "a b:1"}) {
        const auto master = connect_master({.address = address, .incarnation = Incarnation::random()});
        const auto reply = master->heartbeat(kClient, soon());
        ASSERT_FALSE(reply) << address;
        EXPECT_THAT(reply.error().message(), HasSubstr("master address")) << address;
        Follower follower;
        EXPECT_EQ(master->follow(kClient, follower.stream()), 0U);
        EXPECT_EQ(follower.end().code(), reply.error().code());
        master->unfollow(0);
    }
    EXPECT_EQ(connect_master({.address = "etcd://h:1"})->heartbeat(kClient, soon()).error().code(), Code::kNotSupported);
}

}  // namespace mooncake::store
