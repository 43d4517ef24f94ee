// SPDX-License-Identifier: Apache-2.0
#include "store/master/ops/task_ops.h"
#include "store/master/testing/pool_tasks.h"

namespace mooncake::store {
namespace {

using Tasks = PoolTasksTest;

TEST_F(Tasks, ACopyAddsAReplica) {
    const TaskReply created = copy("k", {"node02:1"});
    ASSERT_EQ(created.code, StoreCode::kOk);
    EXPECT_EQ(status(created.task), TaskStatus::kPending);
    jobs();
    EXPECT_EQ(status(created.task), TaskStatus::kProcessing);
    EXPECT_EQ(segments_of("k"), (Numbers{1})) << "not before it is done";
    EXPECT_EQ(finish(created.task, StoreCode::kOk, node(2)), StoreCode::kIllegalClient);
    EXPECT_EQ(finish(created.task), StoreCode::kOk);
    EXPECT_EQ(finish(created.task), StoreCode::kOk) << "its answer was lost";
    EXPECT_EQ(segments_of("k"), (Numbers{1, 2}));
    EXPECT_EQ(status(created.task), TaskStatus::kSuccess);
    EXPECT_EQ(query_task(state(), created.task)->info.client, node(1));
}

TEST_F(Tasks, AMoveTakesTheSourceAwayButLeavesItToLeasedReaders) {
    get("k");
    const TaskReply created = move("k", "node01:1", "node02:1");
    jobs();
    EXPECT_EQ(finish(created.task), StoreCode::kOk);
    EXPECT_EQ(segments_of("k"), (Numbers{2}));
    EXPECT_EQ(state().quarantine().bytes(), kKiB);
}

TEST_F(Tasks, CopyToWhereItIsAlreadyHasEnded) {
    const TaskReply created = copy("k", {"node01:1"});
    ASSERT_EQ(created.code, StoreCode::kOk);
    EXPECT_EQ(query_task(state(), created.task)->info.status, TaskStatus::kSuccess);
    EXPECT_EQ(segments_of("k"), (Numbers{1}));
    EXPECT_EQ(state().tasks().pending().size(), 0u);
}

TEST_F(Tasks, AreRefusedWhereTheyMakeNoSense) {
    EXPECT_EQ(copy("k", {}).code, StoreCode::kInvalidParams);
    EXPECT_EQ(copy("", {"node02:1"}).code, StoreCode::kObjectNotFound);
    EXPECT_EQ(copy("k", {"node09:1"}).code, StoreCode::kInvalidParams);
    EXPECT_EQ(copy("missing", {"node02:1"}).code, StoreCode::kObjectNotFound);
    EXPECT_EQ(move("k", "node01:1", "node01:1").code, StoreCode::kInvalidParams);
    EXPECT_EQ(move("k", "node09:1", "node01:1").code, StoreCode::kInvalidParams);
    EXPECT_EQ(move("k", "node02:1", "node01:1").code, StoreCode::kInvalidParams);
    start("writing");
    EXPECT_EQ(copy("writing", {"node02:1"}).code, StoreCode::kReplicaIsNotReady);
    EXPECT_EQ(finish({7, 7}), StoreCode::kTaskNotFound);
    EXPECT_FALSE(query_task(state(), {7, 7}));
}

TEST_F(Tasks, AreBounded) {
    use({.pending_tasks_max = 2, .finished_tasks_max = 1});
    log_.clear();
    SetUp();
    const TaskReply first = copy("k", {"node02:1"});
    EXPECT_EQ(copy("k", {"node02:1"}).code, StoreCode::kOk);
    EXPECT_EQ(copy("k", {"node02:1"}).code, StoreCode::kTaskPendingLimitExceeded);
    jobs();
    finish(first.task);
    pass(1s);
    jobs();
    EXPECT_FALSE(query_task(state(), first.task)) << "only the latest outcome is kept";
}

TEST_F(Tasks, KeepAValueFromBeingRemovedReplacedOrEvicted) {
    const TaskReply created = copy("k", {"node02:1"});
    jobs();
    EXPECT_EQ(remove_key("k", true), StoreCode::kObjectHasReplicationTask);
    EXPECT_EQ(upsert("k").code, StoreCode::kObjectHasReplicationTask);
    EXPECT_EQ(object("k").shelf, Shelf::kNone);
    EXPECT_EQ(finish(created.task, StoreCode::kTransferFail), StoreCode::kOk);
    EXPECT_EQ(status(created.task), TaskStatus::kFailed);
    EXPECT_EQ(query_task(state(), created.task)->info.message, "TRANSFER_FAIL");
    EXPECT_EQ(segments_of("k"), (Numbers{1}));
    EXPECT_EQ(state().quarantine().size(), 0u) << "who reports a failure has stopped";
    EXPECT_EQ(remove_key("k"), StoreCode::kOk);
}

TEST_F(Tasks, EndWithTheirSourceAndTheirTargets) {
    const TaskReply first = copy("k", {"node02:1"});
    jobs();
    auto t = transaction();
    unmount_segment(t, {.client = node(2), .segment = spec(2, kPool).id}, now_);
    EXPECT_EQ(status(first.task), TaskStatus::kFailed);
    EXPECT_TRUE(holds("k"));
    add_node(3);
    const TaskReply second = copy("k", {"node03:1"});
    jobs();
    unmount_segment(t, {.client = node(1), .segment = spec(1, kPool).id}, now_);
    EXPECT_EQ(status(second.task), TaskStatus::kFailed);
    EXPECT_FALSE(holds("k"));
    EXPECT_EQ(state().quarantine().bytes(), kKiB) << "the copier may still be at it";
    goodbye(t, node(1), now_);
    EXPECT_EQ(state().quarantine().bytes(), 0u);
}

TEST_F(Tasks, MakeRoomOnTheirTarget) {
    for (int i = 0; i < 4; ++i) put(std::to_string(i), kPool / 4, {.preferred_segments = {"node02:1"}});
    ASSERT_EQ(state().segments()[2].allocator.free_bytes(), 0u);
    const TaskReply created = copy("k", {"node02:1"});
    jobs();
    EXPECT_EQ(status(created.task), TaskStatus::kProcessing);
    EXPECT_FALSE(holds("0"));
    EXPECT_TRUE(holds("1"));
}

TEST_F(Tasks, WaitForRoomAndGiveUpInTheEnd) {
    put("full", kPool, {.hard_pin = true, .preferred_segments = {"node02:1"}});
    const TaskReply created = copy("k", {"node02:1"});
    jobs();
    EXPECT_EQ(status(created.task), TaskStatus::kPending);
    remove_key("full");
    pass(100ms);
    jobs();
    EXPECT_EQ(status(created.task), TaskStatus::kProcessing);
    pass(300s);
    beat(node(1));
    beat(node(2));
    jobs();
    EXPECT_EQ(status(created.task), TaskStatus::kFailed);
    EXPECT_EQ(state().quarantine().bytes(), kKiB) << "nobody said that it has stopped";
}

TEST_F(Tasks, GiveTheirTargetsBackWhenTheCopierThatWasTooSlowHasStopped) {
    const TaskReply slow = copy("k", {"node02:1"});
    jobs();
    pass(300s);
    beat(node(1));
    beat(node(2));
    jobs();
    ASSERT_EQ(status(slow.task), TaskStatus::kFailed);
    const TaskReply next = copy("k", {"node02:1"});  // of the same value, by the same client
    jobs();
    ASSERT_EQ(status(next.task), TaskStatus::kProcessing);
    ASSERT_EQ(state().quarantine().bytes(), kKiB);
    EXPECT_EQ(finish(next.task, StoreCode::kTransferFail), StoreCode::kOk);
    EXPECT_EQ(finish(slow.task, StoreCode::kOk, node(2)), StoreCode::kIllegalClient);
    EXPECT_EQ(state().quarantine().bytes(), kKiB) << "the first may still be at it";
    EXPECT_EQ(finish(slow.task), StoreCode::kOk);
    EXPECT_EQ(state().quarantine().bytes(), 0u);
    EXPECT_EQ(segments_of("k"), (Numbers{1})) << "too late to count";
}

TEST_F(Tasks, GiveTheirTargetsBackAlsoWhenTheyAreForgotten) {
    use({.finished_tasks_max = 0});
    log_.clear();
    SetUp();
    const TaskReply slow = copy("k", {"node02:1"});
    jobs();
    auto t = transaction();
    unmount_segment(t, {.client = node(1), .segment = spec(1, kPool).id}, now_);
    ASSERT_FALSE(query_task(state(), slow.task));
    ASSERT_EQ(state().quarantine().bytes(), kKiB);
    EXPECT_EQ(finish(slow.task), StoreCode::kTaskNotFound);
    EXPECT_EQ(state().quarantine().bytes(), 0u);
}

TEST_F(Tasks, LeaveTheirTargetsInQuarantineWhereBytesMayStillLand) {
    add_node(3);
    const TaskReply broken = copy("k", {"node02:1", "node03:1"});
    jobs();
    ASSERT_EQ(status(broken.task), TaskStatus::kProcessing);
    EXPECT_EQ(finish(broken.task, StoreCode::kTransferFail, node(1), {2}), StoreCode::kOk);
    EXPECT_EQ(status(broken.task), TaskStatus::kFailed);
    EXPECT_EQ(state().segments()[2].quarantined_bytes, kKiB);
    EXPECT_EQ(state().segments()[3].quarantined_bytes, 0u);
    EXPECT_EQ(finish(broken.task, StoreCode::kTransferFail, node(1), {2}), StoreCode::kOk) << "told once more";
    EXPECT_EQ(state().segments()[2].quarantined_bytes, kKiB);
    EXPECT_EQ(finish(broken.task, StoreCode::kTransferFail), StoreCode::kOk) << "it has been fenced";
    EXPECT_EQ(state().quarantine().bytes(), 0u);
}

TEST_F(Tasks, LeaveTargetsWhereBytesMayStillLandInQuarantineForTheirTimeAtMost) {
    const TaskReply broken = copy("k", {"node02:1"});
    jobs();
    finish(broken.task, StoreCode::kTransferFail, node(1), {2});
    pass(state().options().put_release_timeout - 1s);
    beat(node(2));
    jobs();
    EXPECT_EQ(state().quarantine().bytes(), kKiB);
    pass(2s);
    beat(node(2));
    jobs();
    EXPECT_EQ(state().quarantine().bytes(), 0u);
}

TEST_F(Tasks, ThatWereTakenFromTheirCopierLeaveInQuarantineWhatItCannotFence) {
    add_node(3);
    const TaskReply slow = copy("k", {"node02:1", "node03:1"});
    jobs();
    auto t = transaction();
    unmount_segment(t, {.client = node(1), .segment = spec(1, kPool).id}, now_);
    ASSERT_EQ(state().quarantine().size(), 2u);
    finish(slow.task, StoreCode::kTransferFail, node(1), {3});
    EXPECT_EQ(state().segments()[2].quarantined_bytes, 0u);
    EXPECT_EQ(state().segments()[3].quarantined_bytes, kKiB);
}

TEST_F(Tasks, ReadFromAReplicaThatAnswers) {
    add_node(3);
    put("both", kKiB, {.replica_num = 2, .preferred_segments = {"node01:1", "node02:1"}});
    follows(node(1), false);
    const TaskReply created = copy("both", {"node03:1"});
    jobs();
    EXPECT_EQ(query_task(state(), created.task)->info.client, node(2));
}

TEST_F(Tasks, DoNotBeginWhereTheTargetDoesNotAnswer) {
    follows(node(2), false);
    const TaskReply created = move("k", "node01:1", "node02:1");
    jobs();
    EXPECT_EQ(status(created.task), TaskStatus::kPending);
    follows(node(2), true);
    pass(100ms);
    jobs();
    EXPECT_EQ(status(created.task), TaskStatus::kProcessing);
}

TEST_F(Tasks, AMoveKeepsTheSourceWhereTheTargetWasLostBeforeItsEnd) {
    const TaskReply created = move("k", "node01:1", "node02:1");
    jobs();
    follows(node(2), false);
    EXPECT_EQ(finish(created.task), StoreCode::kOk);
    EXPECT_EQ(status(created.task), TaskStatus::kFailed);
    EXPECT_EQ(segments_of("k"), (Numbers{1}));
    EXPECT_EQ(query_task(state(), created.task)->info.message, "the target does not answer any more");
}

TEST_F(Tasks, FindTheRoomThatTheyMade) {
    // When the group goes, its many ranges that are just too short stand before the one that is long enough.
    constexpr uint64_t kMember = 1'049'000, kWanted = 1'080'100, kSmall = 31'330;
    add_node(3, 2 << 20);
    const uint64_t target = 300 * (state().rounded(kMember) + 64) + state().rounded(kSmall);
    add_node(4, target);
    const std::vector<std::string> there{"node04:1"};
    put("wanted", kWanted, {.preferred_segments = {"node03:1"}});
    put("small", kSmall, {.preferred_segments = there});
    for (int i = 0; i < 300; ++i) {
        put(format_text("m{}", i), kMember, {.preferred_segments = there}, "group");
        put(format_text("s{}", i), 64, {.hard_pin = true, .preferred_segments = there});
    }
    ASSERT_EQ(state().segments()[4].allocator.free_bytes(), 0u);
    ASSERT_EQ(object("m299").replicas[0].segment, 4u);
    const TaskReply created = copy("wanted", there);
    jobs();
    EXPECT_FALSE(holds("m0"));
    EXPECT_EQ(status(created.task), TaskStatus::kProcessing);
}

class Quotas : public PoolTest {
protected:
    void SetUp() override {
        options_.tenants = true;
        add_node(1);
    }
    StoreCode quota(std::string_view tenant, uint64_t bytes) {
        auto t = transaction();
        return set_quota(t, tenant, bytes);
    }
    StoreCode forget(std::string_view tenant) {
        auto t = transaction();
        return delete_quota(t, tenant);
    }
};

TEST_F(Quotas, BelongToTenants) {
    use({.tenants = false});
    log_.clear();
    EXPECT_EQ(quota("a", 1), StoreCode::kUnavailableInCurrentMode);
    EXPECT_EQ(forget("a"), StoreCode::kUnavailableInCurrentMode);
}

TEST_F(Quotas, RegisterATenantAndLetItGoWhenItIsEmpty) {
    tenant_ = "a";
    EXPECT_EQ(put("k"), StoreCode::kTenantNotRegistered);
    EXPECT_EQ(quota("", 1), StoreCode::kInvalidParams);
    EXPECT_EQ(quota("_a", 1), StoreCode::kInvalidParams);
    EXPECT_EQ(quota("a\n", 1), StoreCode::kInvalidParams);
    EXPECT_EQ(forget("a"), StoreCode::kTenantNotRegistered);
    EXPECT_EQ(quota("a", 4 * kKiB), StoreCode::kOk);
    EXPECT_EQ(put("k"), StoreCode::kOk);
    EXPECT_EQ(forget("a"), StoreCode::kTenantNotEmpty);
    EXPECT_EQ(list_quotas(state()).at(0).charged_bytes, kKiB);
    EXPECT_EQ(remove_key("k"), StoreCode::kOk);
    EXPECT_EQ(forget("a"), StoreCode::kOk);
    EXPECT_TRUE(list_quotas(state()).empty());
}

TEST_F(Quotas, EvictTheirOwnTenantsMemoryAndRefuseWhatCannotFit) {
    quota("a", 4 * kKiB);
    quota("b", 4 * kKiB);
    tenant_ = "b";
    put("other");
    tenant_ = "a";
    for (int i = 0; i < 6; ++i) EXPECT_EQ(put(std::to_string(i)), StoreCode::kOk);
    EXPECT_FALSE(holds("1"));
    EXPECT_TRUE(holds("5"));
    EXPECT_EQ(put("large", 5 * kKiB), StoreCode::kTenantQuotaExceeded);
    for (int i = 2; i < 6; ++i) get(std::to_string(i));
    EXPECT_EQ(put("n"), StoreCode::kTenantQuotaExceeded) << "all it has is leased";
    tenant_ = "b";
    EXPECT_TRUE(holds("other"));
}

TEST_F(Quotas, EvictNothingForReplicasThatCanHaveNoPlace) {
    quota("a", 8 * kKiB);
    tenant_ = "a";
    for (int i = 0; i < 4; ++i) put(std::to_string(i));
    EXPECT_EQ(put("n", kKiB, {.replica_num = 60'000}), StoreCode::kOk);
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(holds(std::to_string(i))) << i;
    EXPECT_EQ(object("n").replicas.size(), 1u);
}

TEST_F(Quotas, EvictNothingForReplicasThatTheyCanNeverPay) {
    for (uint64_t number = 2; number <= 8; ++number) add_node(number);
    quota("a", 4 * kKiB);
    tenant_ = "a";
    put("0");
    put("1");
    EXPECT_EQ(put("n", 2 * kKiB, {.replica_num = 8}), StoreCode::kOk);
    EXPECT_EQ(object("n").replicas.size(), 2u) << "all that the quota pays for, with what it has given up for them";
    EXPECT_EQ(put("m", 3 * kKiB, {.replica_num = 8}), StoreCode::kOk);
    EXPECT_EQ(object("m").replicas.size(), 1u);
}

TEST_F(Quotas, ShrinkInProportionToWhatIsMounted) {
    quota("a", 3 * kPool);
    quota("b", kPool);
    const std::vector<TenantQuota> quotas = list_quotas(state());
    ASSERT_EQ(quotas.size(), 2u);
    EXPECT_EQ(quotas[0].effective_bytes, kPool / 4 * 3);
    EXPECT_EQ(quotas[1].effective_bytes, kPool / 4);
    add_node(2, 3 * kPool);
    EXPECT_EQ(list_quotas(state())[0].effective_bytes, 3 * kPool);
    EXPECT_TRUE(list_quotas(state())[0].explicit_policy);
}

TEST_F(Quotas, CountCopiesToo) {
    add_node(2);
    quota("a", 2 * kKiB);
    tenant_ = "a";
    put("k", kKiB, {.preferred_segments = {"node01:1"}});
    put("l", kKiB, {.preferred_segments = {"node01:1"}});
    auto t = transaction();
    const TaskReply created = create_task(t, {.type = TaskType::kCopy, .tenant = "a", .key = "k", .targets = {"node02:1"}}, now_);
    jobs();
    EXPECT_EQ(query_task(state(), created.task)->info.message, "TENANT_QUOTA_EXCEEDED");
}

}  // namespace
}  // namespace mooncake::store
