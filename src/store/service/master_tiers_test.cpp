// SPDX-License-Identifier: Apache-2.0
// Values between memory and disks (docs/tiers.md), asked over connections.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "store/service/master_server.h"
#include "store/service/testing/served_master.h"

namespace mooncake::store {
namespace {

using namespace store::testing;
using ::testing::ElementsAre;

constexpr ClientId kNode{1, 1};
constexpr uint64_t kMost = 40 << 20;  // of the memory, which has 64 MiB

/// A node with memory and a disk, which follows; it need not heartbeat.
class MasterTiers : public ::testing::Test {
protected:
    void serve(MasterOptions options) {
        options.client_ttl = 1h;
        options.silent_after = 0s;
        auto server = MasterServer::create({.core = options, .threads = 2});
        MC_CHECK(server);
        server_ = std::move(*server);
        server_->start();
        caller_ = std::make_unique<Caller>(format_text("127.0.0.1:{}", server_->port()));
        caller_->join(kNode, 1);
        MC_CHECK(caller_->mount(kNode, disk()) == StoreCode::kOk);
        node_ = std::make_unique<Following>(caller_->address(), kNode);
        MC_CHECK(node_->wait_complete());
        for (const auto& entry : caller_->segments().segments)
            if (entry.segment.kind == SegmentKind::kDisk) disk_number_ = entry.number;
    }
    static SegmentSpec disk() {
        SegmentSpec spec = Caller::segment(1, 1 << 30);
        spec.id = {8, 1};
        spec.base = 0;
        spec.kind = SegmentKind::kDisk;
        spec.service = "host:2";
        return spec;
    }
    void put(const std::string& key, uint64_t length = kMost) {
        ASSERT_EQ(caller_->put_start(kNode, {key}, false, length).items.at(0).code, StoreCode::kOk);
        ASSERT_THAT(caller_->put_end(kNode, {key}).codes, ElementsAre(StoreCode::kOk));
    }
    /// What the node was told, ever.
    template <typename Visit>
    void for_updates(Visit&& visit) {
        for (const EventUpdate& update : node_->updates()) visit(update);
    }
    std::optional<CopyOrder> find_order(const std::string& key) {
        std::optional<CopyOrder> found;
        for_updates([&](const EventUpdate& update) {
            for (const CopyOrder& order : update.orders)
                if (order.key == key) found = order;
        });
        return found;
    }
    CopyOrder wait_order(const std::string& key) {
        MC_CHECK(eventually([&] { return find_order(key).has_value(); }));
        return *find_order(key);
    }
    bool was_filled(uint64_t generation) {
        bool found = false;
        for_updates([&](const EventUpdate& update) {
            for (const RangeFilled& filled : update.filled) found |= filled.segment == disk().id && filled.generation == generation;
        });
        return found;
    }
    bool was_dropped(const SegmentId& segment, uint64_t generation) {
        bool found = false;
        for_updates([&](const EventUpdate& update) {
            for (const RangeDropped& dropped : update.dropped) found |= dropped.segment == segment && dropped.generation == generation;
        });
        return found;
    }
    CodesReply end(const std::vector<CopyEnd>& ends, uint64_t window = 0, const ClientId& client = kNode) {
        return decode_codes_reply(
                   caller_->call(rpc::Method::kStoreEndCopies, encode_copies_end({.client = client, .items = ends, .window_bytes = window}))
                       .value())
            .value();
    }
    StoreCode gone(const std::string& key, uint64_t generation, const ClientId& client = kNode) {
        const GoneReplica one{.tenant = {}, .key = key, .generation = generation};
        return decode_code_reply(caller_
                                     ->call(rpc::Method::kStoreReplicasGone,
                                            encode_replicas_gone({.client = client, .segment = disk().id, .items = {&one, 1}}))
                                     .value())
            .value();
    }

    std::unique_ptr<MasterServer> server_;
    std::unique_ptr<Caller> caller_;
    std::unique_ptr<Following> node_;
    uint32_t disk_number_ = 0;
};

TEST_F(MasterTiers, AValueIsOffloadedLeavesMemoryAndIsFoundOnDisk) {
    serve({.offload = true});
    put("a");
    const CopyOrder order = wait_order("a");
    EXPECT_TRUE(is_tier_task(order.task));
    EXPECT_EQ(order.length, kMost);
    EXPECT_EQ(order.checksum, 1u);
    ASSERT_EQ(order.targets.size(), 1u);
    EXPECT_EQ(order.targets[0].segment, disk_number_);
    EXPECT_THAT(end({{.task = order.task}}, 1 << 24).codes, ElementsAre(StoreCode::kOk));
    EXPECT_TRUE(was_filled(order.generation)) << "its node knows before it counts";
    put("b");
    ASSERT_TRUE(eventually([&] { return was_dropped(Caller::segment(1).id, order.generation); })) << "from memory";
    EXPECT_FALSE(was_dropped(disk().id, order.generation));
    EXPECT_THAT(caller_->exist({"a", "b"}).results, ElementsAre(1, 1));
    const GetReply got = caller_->get({"a", "b"});
    EXPECT_EQ(got.items[0].code, StoreCode::kOk);
    EXPECT_EQ(got.items[0].length, kMost);
    ASSERT_EQ(got.items[0].replica_count, 1u);
    EXPECT_EQ(got.replicas[got.items[0].first_replica].segment, disk_number_);
    EXPECT_NE(got.replicas[got.items[1].first_replica].segment, disk_number_);
    EXPECT_THAT(caller_->remove({"a"}, true).codes, ElementsAre(StoreCode::kOk));
    EXPECT_TRUE(eventually([&] { return was_dropped(disk().id, order.generation); })) << "from the disk, too";
    EXPECT_THAT(caller_->exist({"a"}).results, ElementsAre(0));
}

TEST_F(MasterTiers, APutWaitsForADiskThatIsBehind) {
    serve({.offload_on_evict = true});
    put("a");
    const PutStartReply refused = caller_->put_start(kNode, {"b"}, false, kMost);
    EXPECT_EQ(refused.items.at(0).code, StoreCode::kNoAvailableHandle);
    EXPECT_GT(refused.retry_after, 0s);
    EXPECT_GT(refused.disk_wait, 0s);
    EXPECT_LE(refused.retry_after, 2s);
    const CopyOrder order = wait_order("a");  // since somebody needs its memory
    end({{.task = order.task}});
    put("b");
    EXPECT_THAT(caller_->exist({"a", "b"}).results, ElementsAre(1, 1));
}

TEST_F(MasterTiers, WhatIsReadOftenComesBackToMemory) {
    serve({.offload = true, .promote = true});
    put("a");
    end({{.task = wait_order("a").task}});
    put("b");
    end({{.task = wait_order("b").task}});
    EXPECT_THAT(caller_->remove({"b"}, true).codes, ElementsAre(StoreCode::kOk));
    EXPECT_EQ(caller_->get({"a"}).items[0].replica_count, 1u);
    EXPECT_EQ(caller_->get({"a"}).items[0].replica_count, 1u);
    ASSERT_TRUE(eventually([&] { return find_order("a")->source.segment == disk_number_; })) << "the other way round";
    const CopyOrder order = *find_order("a");
    EXPECT_NE(order.targets.at(0).segment, disk_number_);
    EXPECT_THAT(end({{.task = order.task}}).codes, ElementsAre(StoreCode::kOk));
    const GetReply got = caller_->get({"a"});
    ASSERT_EQ(got.items[0].replica_count, 2u);
    EXPECT_NE(got.replicas[0].segment, disk_number_) << "memory first";
    EXPECT_EQ(got.replicas[1].segment, disk_number_);
}

TEST_F(MasterTiers, WhatANodeGivesUpIsGone) {
    serve({.offload = true});
    put("a");
    const CopyOrder order = wait_order("a");
    end({{.task = order.task}});
    put("b");
    EXPECT_EQ(gone("a", order.generation + 1), StoreCode::kOk) << "another value";
    EXPECT_THAT(caller_->exist({"a"}).results, ElementsAre(1));
    EXPECT_EQ(gone("a", order.generation, {9, 9}), StoreCode::kIllegalClient);
    EXPECT_EQ(gone("a", order.generation), StoreCode::kOk);
    EXPECT_THAT(caller_->exist({"a"}).results, ElementsAre(0));
    EXPECT_EQ(gone("a", order.generation), StoreCode::kOk) << "repeated";
}

TEST_F(MasterTiers, OrdersThatHaveNotEndedAreToldAgain) {
    serve({.offload = true});
    put("a");
    const CopyOrder order = wait_order("a");
    node_.reset();
    node_ = std::make_unique<Following>(caller_->address(), kNode);
    EXPECT_EQ(wait_order("a").task, order.task);
    EXPECT_THAT(end({{.task = order.task}, {.task = order.task}, {.task = {1, 1}}}).codes,
                ElementsAre(StoreCode::kOk, StoreCode::kTaskNotFound, StoreCode::kInvalidParams));
    EXPECT_THAT(end({{.task = order.task}}, 0, {9, 9}).codes, ElementsAre(StoreCode::kTaskNotFound));
    EXPECT_TRUE(end({}, 1 << 22).codes.empty()) << "a window without an end";
}

TEST_F(MasterTiers, LongListsAreTakenInParts) {
    serve({.offload = true});
    std::vector<CopyEnd> ends(10'000, CopyEnd{.task = {1, kTierTaskBit | 1}});
    EXPECT_EQ(end(ends).codes, std::vector<StoreCode>(10'000, StoreCode::kTaskNotFound));
    std::vector<std::string> keys;
    for (int i = 0; i < 10'000; ++i) keys.push_back(format_text("k{}", i));
    std::vector<GoneReplica> items;
    for (const std::string& key : keys) items.push_back({.tenant = {}, .key = key, .generation = 1});
    const auto reply = caller_->call(rpc::Method::kStoreReplicasGone,
                                     encode_replicas_gone({.client = kNode, .segment = disk().id, .items = items}));
    ASSERT_TRUE(reply);
    EXPECT_EQ(decode_code_reply(*reply).value(), StoreCode::kOk);
}

}  // namespace
}  // namespace mooncake::store
