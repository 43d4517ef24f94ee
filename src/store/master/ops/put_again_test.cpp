// SPDX-License-Identifier: Apache-2.0
// Puts of keys that have a value already: it is there only if it can be read.
#include "store/master/ops/task_ops.h"
#include "store/master/range_events.h"
#include "store/master/testing/pool_segments.h"

namespace mooncake::store {
namespace {

class PutAgain : public PoolSegmentsTest {
protected:
    static constexpr uint64_t kOld = 100, kNew = 200;

    void SetUp() override {
        first_ = add_node(1);
        second_ = add_node(2);
        put_on_first("k");
        old_ = object("k").generation;
    }
    void put_on_first(std::string_view key, std::string_view group = {}) {
        ASSERT_EQ(put(key, kOld, {.preferred_segments = {"node01:1"}}, group), StoreCode::kOk);
        ASSERT_EQ(object(key).replicas[0].segment, first_);
    }
    /// A put_start of somebody who cannot reach `unreachable`.
    PutStartItem start_without(SegmentNumber unreachable, std::string_view key, std::string_view group = {}) {
        auto t = transaction();
        const PutItem item{.key = key, .length = kNew, .group = group};
        return put_start(t, {.client = kClient, .items = {&item, 1}, .unreachable = {&unreachable, 1}}, now_).items[0];
    }
    void expect_replaced(std::string_view key, const PutStartItem& started) {
        ASSERT_EQ(started.code, StoreCode::kOk);
        EXPECT_EQ(end(key, started.generation), StoreCode::kOk);
        EXPECT_EQ(object(key).generation, started.generation);
        EXPECT_EQ(object(key).length, kNew);
        ASSERT_EQ(object(key).replicas.size(), 1u);
        EXPECT_EQ(object(key).replicas[0].segment, second_);
    }
    void expect_kept(std::string_view key, const PutStartItem& started) {
        EXPECT_EQ(started.code, StoreCode::kObjectAlreadyExists);
        EXPECT_EQ(object(key).write, 0u);
        EXPECT_EQ(object(key).length, kOld);
    }

    SegmentNumber first_ = 0, second_ = 0;
    uint64_t old_ = 0;
};

TEST_F(PutAgain, ReplacesAValueThatItsWriterCannotReach) { expect_replaced("k", start_without(first_, "k")); }

TEST_F(PutAgain, ReplacesAValueWhoseNodeDoesNotFollow) {
    follows(node(1), false);
    expect_replaced("k", start("k", kNew));
}

TEST_F(PutAgain, ReplacesAValueWhoseNodeIsSilent) {
    pass(options_.silent_after);
    beat(node(2));
    expect_replaced("k", start("k", kNew));
}

TEST_F(PutAgain, ReplacesAValueWhereReadsWereReportedToFail) {
    suspected(first_);
    expect_replaced("k", start("k", kNew));
}

TEST_F(PutAgain, IsForAHungNodeThatIsAloneNotAnsweredAsIfTheValueWereThere) {
    unmount(2);
    pass(options_.silent_after);
    EXPECT_EQ(start("k", kNew).code, StoreCode::kOk) << "its writer will find out";
}

TEST_F(PutAgain, KeepsAValueThatAnotherReplicaHas) {
    ASSERT_EQ(put("two", kOld, {.replica_num = 2}), StoreCode::kOk);
    expect_kept("two", start_without(first_, "two"));
    follows(node(1), false);
    expect_kept("two", start("two", kNew));
    EXPECT_EQ(start_without(second_, "two").code, StoreCode::kOk) << "one does not answer, the other cannot be reached";
}

TEST_F(PutAgain, KeepsAValueWhenItsNodeIsBack) {
    follows(node(1), false);
    pass(2 * options_.silent_after);
    beat(node(1));
    follows(node(1), true);
    expect_kept("k", start("k", kNew));
}

TEST_F(PutAgain, KeepsAValueInTheMemoryOfItsWriter) {
    follows(node(1), false);
    pass(options_.silent_after);
    expect_kept("k", start("k", kNew, {}, node(1)));
}

TEST_F(PutAgain, KeepsAValueThatItsNodeHasJustReported) {
    HeldSegment part{.segment = spec(3, kPool), .objects = {}, .writes = {}};
    const std::vector<HeldObject> objects{held("reported", 0, old_ + 7, kOld)};
    part.objects = objects;
    part.more = true;
    auto t = transaction();
    ASSERT_EQ(remount(t, {.client = node(3), .segments = {&part, 1}}, now_).segments[0].adopted, 1u);
    expect_kept("reported", start("reported", kNew));
}

TEST_F(PutAgain, LeavesTheOldValueUntilItsEnd) {
    follows(node(1), false);
    const PutStartItem started = start("k", kNew);
    ASSERT_EQ(started.code, StoreCode::kOk);
    EXPECT_EQ(object("k").generation, old_);
    EXPECT_EQ(revoke("k", started.generation), StoreCode::kOk);
    follows(node(1), true);
    EXPECT_EQ(get("k").generation, old_) << "the node was not dead after all";
}

TEST_F(PutAgain, LeavesTheOldBytesToTheirReaders) {
    get("k");
    follows(node(1), false);
    expect_replaced("k", start("k", kNew));
    EXPECT_EQ(state().segments()[first_].quarantined_bytes, state().rounded(kOld));
}

TEST_F(PutAgain, BringsTheOldValueNeverBack) {
    const uint64_t offset = object("k").replicas[0].offset;
    follows(node(1), false);
    expect_replaced("k", start("k", kNew));
    const uint64_t now = object("k").generation;
    {
        auto t = transaction();
        end_client(t, state().clients().find(node(1)), ClientEnd::kSilent, now_);
    }
    EXPECT_EQ(adopt(1, {held("k", offset, old_, kOld)}).stale, 1u);
    EXPECT_EQ(object("k").generation, now);
    EXPECT_EQ(remove_key("k", true), StoreCode::kOk);
    unmount(1);
    EXPECT_EQ(adopt(3, {held("k", offset, old_, kOld)}).stale, 1u) << "nor when the new one is gone";
    EXPECT_FALSE(holds("k"));
}

TEST_F(PutAgain, SurvivesTheEndOfTheOldNode) {
    follows(node(1), false);
    const PutStartItem started = start("k", kNew);
    {
        auto t = transaction();
        end_client(t, state().clients().find(node(1)), ClientEnd::kSilent, now_);
    }
    expect_replaced("k", started);
}

TEST_F(PutAgain, WaitsForAnotherThatReplacesTheValue) {
    follows(node(1), false);
    const PutStartItem started = start("k", kNew);
    EXPECT_EQ(start("k", kNew, {}, kOther).code, StoreCode::kReplicaIsNotReady);
    expect_replaced("k", started);
    EXPECT_EQ(start("k", kNew, {}, kOther).code, StoreCode::kObjectAlreadyExists);
}

TEST_F(PutAgain, WaitsForACopyOfTheValue) {
    TaskReply task;
    {
        auto t = transaction();
        task = create_task(t, {.type = TaskType::kCopy, .tenant = tenant_, .key = "k", .targets = {"node02:1"}}, now_);
        ASSERT_EQ(task.code, StoreCode::kOk);
    }
    jobs();
    ASSERT_NE(object("k").copy, 0u);
    follows(node(1), false);
    EXPECT_EQ(start("k", kNew).code, StoreCode::kReplicaIsNotReady);
    auto t = transaction();
    end_client(t, state().clients().find(node(1)), ClientEnd::kSilent, now_);
    EXPECT_EQ(start("k", kNew).code, StoreCode::kOk) << "it went with its source";
}

TEST_F(PutAgain, OfAGroupThatLostAMemberReplacesAllOfIt) {
    put_on_first("a", "g");
    ASSERT_EQ(put("b", kOld, {.preferred_segments = {"node02:1"}}, "g"), StoreCode::kOk);
    follows(node(1), false);
    const PutStartReply reply = start({{.key = "a", .length = kNew, .group = "g"}, {.key = "b", .length = kNew, .group = "g"}});
    {
        auto t = transaction();  // which would take the rest of the group along
        end_client(t, state().clients().find(node(1)), ClientEnd::kSilent, now_);
    }
    expect_replaced("a", reply.items[0]);
    expect_replaced("b", reply.items[1]);
    EXPECT_EQ(get("a").code, StoreCode::kOk);
    EXPECT_EQ(get("b").code, StoreCode::kOk);
}

TEST_F(PutAgain, OfAMemberWhileAnotherIsBeingWrittenKeepsIt) {
    ASSERT_EQ(put("b", kOld, {.preferred_segments = {"node02:1"}}, "g"), StoreCode::kOk);
    follows(node(1), false);
    const PutStartReply reply = start({{.key = "a", .length = kNew, .group = "g"}, {.key = "b", .length = kNew, .group = "g"}});
    EXPECT_EQ(reply.items[0].code, StoreCode::kOk);
    EXPECT_EQ(reply.items[1].code, StoreCode::kObjectAlreadyExists);
}

TEST_F(PutAgain, InAnotherGroupThatIsGivenUpLeavesTheValueWhereItIs) {
    put_on_first("a", "g");
    put_on_first("b", "g");
    follows(node(1), false);
    for (const std::string_view group : {"", "h"}) {
        const PutStartReply reply = start({{.key = "a", .length = kNew, .group = group}});
        ASSERT_EQ(reply.items[0].code, StoreCode::kOk);
        EXPECT_EQ(revoke("a", reply.items[0].generation), StoreCode::kOk);
    }
    follows(node(1), true);
    beat(node(1));
    EXPECT_EQ(get("a").code, StoreCode::kOk);
    EXPECT_EQ(object("a").length, kOld);
    EXPECT_EQ(state().groups()[object("a").group].name, "g");
}

TEST_F(PutAgain, TakesALostValueIntoItsNewGroup) {
    put_on_first("a", "g");
    put_on_first("b", "g");
    put_on_first("alone");
    ASSERT_EQ(put("c", kOld, {.preferred_segments = {"node02:1"}}, "h"), StoreCode::kOk);
    follows(node(1), false);
    const PutStartReply reply = start({{.key = "a", .length = kNew, .group = "h"}, {.key = "alone", .length = kNew, .group = "new"}});
    ASSERT_EQ(reply.items[0].code, StoreCode::kOk);
    EXPECT_EQ(event_of_write(state(), second_, object("a").write).group, "h") << "what its node would tell the next master";
    expect_replaced("a", reply.items[0]);
    expect_replaced("alone", reply.items[1]);
    EXPECT_EQ(state().groups()[object("a").group].name, "h");
    EXPECT_EQ(state().groups()[object("alone").group].name, "new");
    EXPECT_EQ(get("a").code, StoreCode::kOk);
    EXPECT_EQ(state().groups()[object("b").group].members.size(), 1u);
}

TEST_F(PutAgain, TakesALostValueOutOfItsGroup) {
    put_on_first("a", "g");
    put_on_first("b", "g");
    follows(node(1), false);
    expect_replaced("a", start("a", kNew));
    EXPECT_EQ(get("a").code, StoreCode::kOk) << "nothing of the other is needed to read it";
    EXPECT_EQ(object("a").group, 0u);
}

}  // namespace
}  // namespace mooncake::store
