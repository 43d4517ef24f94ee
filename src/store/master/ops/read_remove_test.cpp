// SPDX-License-Identifier: Apache-2.0
#include "store/master/testing/pool.h"

namespace mooncake::store {
namespace {

class Read : public PoolTest {
protected:
    void SetUp() override { add_node(1); }
};

TEST_F(Read, AnswersEveryKeyInOrder) {
    put("a", 100);
    put("c", 300);
    start("d");
    const GetReply reply = get_all({"a", "b", "c", "", "d"});
    ASSERT_EQ(reply.items.size(), 5u);
    EXPECT_EQ(reply.items[0].length, 100u);
    EXPECT_EQ(reply.items[1].code, StoreCode::kObjectNotFound);
    EXPECT_EQ(reply.items[2].length, 300u);
    EXPECT_EQ(reply.items[3].code, StoreCode::kObjectNotFound);
    EXPECT_EQ(reply.items[4].code, StoreCode::kReplicaIsNotReady);
    EXPECT_EQ(reply.replicas.size(), 2u);
    EXPECT_EQ(reply.lease, 10s);
}

TEST_F(Read, ExistTellsOneOrZero) {
    put("a");
    start("b");
    EXPECT_EQ(exists("a"), 1);
    EXPECT_EQ(exists("b"), 0);
    EXPECT_EQ(exists("c"), 0);
    EXPECT_EQ(exists(""), 0);
}

TEST_F(Read, OfNothingIsNothing) {
    EXPECT_TRUE(get_all({}).items.empty());
    EXPECT_EQ(exists("x"), 0) << "also before anything was ever stored";
}

TEST_F(Read, LeasesNeverGetShorter) {
    put("a");
    get("a");
    EXPECT_EQ(object("a").lease_end, now_ + 10s);
    pass(3s);
    get("a");
    EXPECT_EQ(object("a").lease_end, now_ + 10s);
    EXPECT_EQ(object("a").soft_lease_end, now_ + 10s) << "a read is soft_leased, too";
    exists("a");
    EXPECT_EQ(object("a").soft_lease_end, now_ + 10s);
}

TEST_F(Read, LeavesOutWhatTheCallerCannotReach) {
    const SegmentNumber second = add_node(2);
    put("one", kKiB, {.preferred_segments = {"node02:1"}});
    put("both", kKiB, {.replica_num = 2});
    put("g1", kKiB, {.preferred_segments = {"node01:1"}}, "g");
    put("g2", kKiB, {.preferred_segments = {"node02:1"}}, "g");
    const std::vector<std::string_view> keys{"one", "both", "g1", "g2"};
    auto t = transaction();
    const GetReply reply = get_replicas(t, {.tenant = "", .keys = keys, .unreachable = {&second, 1}}, now_);
    EXPECT_EQ(reply.items[0].code, StoreCode::kObjectNotFound);
    ASSERT_EQ(reply.items[1].code, StoreCode::kOk);
    EXPECT_EQ(reply.items[1].replica_count, 1u);
    EXPECT_EQ(reply.replicas, std::vector<ReplicaLocation>{reply.replicas[0]});
    EXPECT_NE(reply.replicas[0].segment, second);
    EXPECT_EQ(reply.items[2].code, StoreCode::kObjectNotFound) << "a group is there as a whole or not";
    const ExistReply there = exist(t, {.tenant = "", .keys = keys, .unreachable = {&second, 1}}, now_);
    EXPECT_EQ(there.results, (std::vector<int32_t>{0, 1, 0, 0}));
    EXPECT_EQ(there.soft_lease, 10s);
    EXPECT_EQ(exists("one"), 1) << "for others it is there";
    EXPECT_EQ(object("one").lease_end, Time{});
}

TEST_F(Read, FindsAmongManyKeys) {
    std::vector<std::string> names;
    for (int i = 0; i < 1000; ++i) names.push_back(format_text("key-{}-{}", i, std::string(static_cast<size_t>(i % 90), 'x')));
    for (size_t i = 0; i < names.size(); i += 2) ASSERT_EQ(put(names[i], 64), StoreCode::kOk);
    const std::vector<std::string_view> keys(names.begin(), names.end());
    auto t = transaction();
    const ExistReply reply = exist(t, {.tenant = "", .keys = keys}, now_);
    for (size_t i = 0; i < names.size(); ++i) EXPECT_EQ(reply.results[i], i % 2 == 0) << i;
}

class Remove : public Read {};

TEST_F(Remove, HasACodeForEverything) {
    EXPECT_EQ(remove_key(""), StoreCode::kObjectNotFound);
    EXPECT_EQ(remove_key("k"), StoreCode::kObjectNotFound);
    start("k");
    EXPECT_EQ(remove_key("k"), StoreCode::kReplicaIsNotReady);
    EXPECT_EQ(remove_key("k", true), StoreCode::kReplicaIsNotReady) << "force is for leases only";
    end("k");
    EXPECT_EQ(remove_key("k"), StoreCode::kOk);
    EXPECT_EQ(remove_key("k"), StoreCode::kObjectNotFound);
    EXPECT_EQ(state().segments().used_bytes(), 0u);
}

TEST_F(Remove, WaitsForLeasesOfBothKindsUnlessForced) {
    put("read");
    put("probed");
    get("read");
    exists("probed");
    EXPECT_EQ(remove_key("read"), StoreCode::kObjectHasLease);
    EXPECT_EQ(remove_key("probed"), StoreCode::kObjectHasLease);
    EXPECT_EQ(remove_key("probed", true), StoreCode::kOk);
    EXPECT_EQ(state().quarantine().size(), 0u) << "nobody knows where a probed object lies";
    pass(10s);
    EXPECT_EQ(remove_key("read"), StoreCode::kOk);
}

TEST_F(Remove, ForcedUnderALeaseLeavesTheBytesAlone) {
    put("k", kPool);
    get("k");
    EXPECT_EQ(remove_key("k", true), StoreCode::kOk);
    EXPECT_FALSE(holds("k"));
    const PutStartReply refused = start({{.key = "n", .length = kPool}});
    EXPECT_EQ(refused.items[0].code, StoreCode::kNoAvailableHandle);
    EXPECT_EQ(refused.retry_after, 10s);
    pass(refused.retry_after);
    EXPECT_EQ(put("n", kPool), StoreCode::kOk);
}

TEST_F(Remove, EndsAWriteThatNobodyWaitsFor) {
    start("k");
    pass(30s);
    EXPECT_EQ(remove_key("k"), StoreCode::kObjectNotFound);
    EXPECT_EQ(state().objects().size(), 0u);
    EXPECT_EQ(state().quarantine().size(), 1u);
}

TEST_F(Remove, OfAKeyTwiceInABatchFindsItOnce) {
    put("k");
    const std::vector<std::string_view> keys{"k", "k"};
    auto t = transaction();
    const CodesReply reply = remove(t, {.tenant = "", .keys = keys}, now_);
    EXPECT_EQ(reply.codes, (std::vector{StoreCode::kOk, StoreCode::kObjectNotFound}));
}

TEST_F(Remove, ReplicaClearIsForTheWriterOfAnUnleasedFinishedObject) {
    add_node(2);
    const auto clear = [&](std::string_view key, std::string_view segment = {}, const ClientId& client = kClient) {
        auto t = transaction();
        return replica_clear(t, {.client = client, .tenant = "", .keys = {&key, 1}, .segment_name = segment}, now_).codes[0];
    };
    EXPECT_EQ(clear(""), StoreCode::kObjectNotFound);
    EXPECT_EQ(clear("k"), StoreCode::kObjectNotFound);
    put("k", 100, {.replica_num = 2});
    start("w");
    EXPECT_EQ(clear("w"), StoreCode::kReplicaIsNotReady);
    EXPECT_EQ(clear("k", {}, kOther), StoreCode::kIllegalClient);
    EXPECT_EQ(clear("k", "elsewhere"), StoreCode::kReplicaNotFound);
    get("k");
    EXPECT_EQ(clear("k"), StoreCode::kObjectHasLease);
    pass(10s);
    EXPECT_EQ(clear("k", "node01:1"), StoreCode::kReplicaIsNotReady) << "nobody heard of the other one lately";
    beat(node(2));
    EXPECT_EQ(clear("k", "node01:1"), StoreCode::kOk);
    EXPECT_EQ(object("k").replicas.size(), 1u);
    EXPECT_EQ(clear("k", "node01:1"), StoreCode::kReplicaNotFound);
    EXPECT_EQ(clear("k"), StoreCode::kOk);
    EXPECT_FALSE(holds("k"));
}

}  // namespace
}  // namespace mooncake::store
