// SPDX-License-Identifier: Apache-2.0
#include "store/master/testing/pool.h"

namespace mooncake::store {
namespace {

class Groups : public PoolTest {
protected:
    void SetUp() override { add_node(1); }
};

TEST_F(Groups, AreVisibleWhenNoMemberIsBeingWritten) {
    const PutStartReply reply = start({{.key = "k", .length = 64, .group = "g"}, {.key = "v", .length = 64, .group = "g"}});
    end("k", reply.items[0].generation);
    EXPECT_EQ(exists("k"), 0);
    EXPECT_EQ(get("k").code, StoreCode::kReplicaIsNotReady);
    end("v", reply.items[1].generation);
    EXPECT_EQ(exists("k"), 1);
    EXPECT_EQ(get("v").code, StoreCode::kOk);
}

TEST_F(Groups, StayVisibleDuringAnUpsertOfAMember) {
    put("k", 64, {}, "g");
    put("v", 64, {}, "g");
    upsert("v", 64);
    EXPECT_EQ(exists("k"), 1);
    EXPECT_EQ(exists("v"), 1);
}

TEST_F(Groups, OfABatchAreStartedAllOrNone) {
    const PutStartReply reply = start({{.key = "a", .length = 64, .group = "g"},
                                       {.key = "x", .length = 64},
                                       {.key = "b", .length = 2 * kPool, .group = "g"},
                                       {.key = "c", .length = 64, .group = "g"},
                                       {.key = "d", .length = 64, .group = "h"}});
    const std::vector<StoreCode> expected{StoreCode::kNoAvailableHandle, StoreCode::kOk, StoreCode::kNoAvailableHandle,
                                          StoreCode::kNoAvailableHandle, StoreCode::kOk};
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(reply.items[i].code, expected[i]) << i;
    EXPECT_EQ(state().segments().used_bytes(), 128u);
    EXPECT_EQ(state().groups().size(), 1u);
}

TEST_F(Groups, AnExistingMemberDoesNotStopTheOthers) {
    put("a", 64, {}, "g");
    const PutStartReply reply = start({{.key = "a", .length = 64, .group = "g"}, {.key = "b", .length = 64, .group = "g"}});
    EXPECT_EQ(reply.items[0].code, StoreCode::kObjectAlreadyExists);
    EXPECT_EQ(reply.items[1].code, StoreCode::kOk);
}

TEST_F(Groups, RemovingOneMemberLeavesTheOthers) {
    put("a", 64, {}, "g");
    put("b", 64, {}, "g");
    put("c", 64, {}, "g");
    EXPECT_EQ(remove_key("a"), StoreCode::kOk);
    EXPECT_EQ(exists("b"), 1);
    EXPECT_EQ(remove_key("b", true), StoreCode::kOk);
    EXPECT_EQ(remove_key("c", true), StoreCode::kOk);
    EXPECT_EQ(state().groups().size(), 0u);
}

TEST_F(Groups, AHardPinnedMemberKeepsAll) {
    put("a", kPool / 4, {}, "g");
    put("b", kPool / 4, {.hard_pin = true}, "g");
    EXPECT_EQ(start("n", kPool).code, StoreCode::kNoAvailableHandle);
    EXPECT_EQ(put("m", kPool / 2), StoreCode::kOk);
    EXPECT_TRUE(holds("a"));
}

TEST_F(Groups, ComeBackFromBeingSetAsideUnderAnotherFirstMember) {
    put("a", kPool / 4, {}, "g");
    put("b", kPool / 4, {}, "g");
    put("c", kPool / 4);
    exists("a");
    put("d", kPool / 2);  // sets the group aside, evicts c
    EXPECT_TRUE(holds("a"));
    EXPECT_EQ(remove_key("a", true), StoreCode::kOk);
    EXPECT_EQ(put("e", kPool / 2), StoreCode::kOk);
    EXPECT_FALSE(holds("b"));
}

TEST_F(Groups, ALeaseOnOneMemberProtectsAllFromRemoval) {
    put("a", kKiB, {}, "g");
    put("b", kKiB, {}, "g");
    put("c", kKiB, {}, "other");
    get("a");
    EXPECT_EQ(remove_key("b"), StoreCode::kObjectHasLease);
    EXPECT_EQ(remove_key("c"), StoreCode::kOk);
    pass(10s);
    EXPECT_EQ(remove_key("b"), StoreCode::kOk);
    exists("a");
    EXPECT_EQ(remove_key("a"), StoreCode::kObjectHasLease);
    EXPECT_EQ(remove_key("a", true), StoreCode::kOk);
}

}  // namespace
}  // namespace mooncake::store
