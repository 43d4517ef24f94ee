// SPDX-License-Identifier: Apache-2.0
#include "store/master/ops/task_ops.h"
#include "store/master/testing/pool.h"

namespace mooncake::store {
namespace {

class Tasks : public PoolTest {
protected:
    void SetUp() override {
        add_node(1);
        add_node(2);
        put("k", kKiB, {.preferred_segments = {"node01:1"}});
    }
    TaskReply copy(std::string_view key, const std::vector<std::string>& targets) {
        auto t = transaction();
        return create_task(t, {.type = TaskType::kCopy, .tenant = tenant_, .key = key, .targets = targets}, now_);
    }
    TaskReply move(std::string_view key, std::string_view source, const std::string& target) {
        auto t = transaction();
        return create_task(t, {.type = TaskType::kMove, .tenant = tenant_, .key = key, .source = source, .targets = {target}}, now_);
    }
    StoreCode finish(const TaskId& task, StoreCode code = StoreCode::kOk, const ClientId& client = node(1)) {
        auto t = transaction();
        return end_task(t, {.client = client, .task = task, .code = code, .message = {}}, now_);
    }
    TaskStatus status(const TaskId& task) { return query_task(state(), task).value().info.status; }
    std::vector<SegmentNumber> segments_of(std::string_view key) {
        std::vector<SegmentNumber> found;
        for (size_t i = 0; i < object(key).replicas.size(); ++i) found.push_back(object(key).replicas[i].segment);
        return found;
    }
    using Numbers = std::vector<SegmentNumber>;
};

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

class Drains : public Tasks {
protected:
    DrainReply drain(const std::vector<std::string>& segments, const std::vector<std::string>& targets = {}, uint32_t concurrency = 4) {
        auto t = transaction();
        return create_drain(t, {.segments = segments, .targets = targets, .concurrency = concurrency}, now_);
    }
    DrainInfo info(const JobId& job) { return query_drain(state(), job).value().info; }
    std::vector<TaskId> active() {
        std::vector<TaskId> found;
        for (TaskNumber n = state().tasks().processing().first(); n != 0; n = state().tasks()[n].order.next)
            found.push_back(state().tasks()[n].id);
        return found;
    }
    void run(Duration time = 500ms) {
        pass(time);
        for (uint64_t n = 1; n <= 3; ++n) beat(node(n));
        jobs();
    }
};

TEST_F(Drains, MoveEverythingAFewAtATimeAndEndDrained) {
    for (int i = 0; i < 9; ++i) put(format_text("d{}", i), kKiB, {.preferred_segments = {"node01:1"}});
    put("both", kKiB, {.replica_num = 2});
    const DrainReply created = drain({"node01:1"});
    ASSERT_EQ(created.code, StoreCode::kOk);
    for (int i = 0; i < 20 && info(created.job).status == DrainStatus::kRunning; ++i) {
        run();
        EXPECT_LE(active().size(), 4u);
        EXPECT_EQ(state().segments()[1].status == SegmentStatus::kOk, false);
        for (const TaskId& task : active()) finish(task);
    }
    EXPECT_EQ(info(created.job).status, DrainStatus::kSucceeded);
    EXPECT_EQ(info(created.job).succeeded, 11u);
    EXPECT_EQ(info(created.job).migrated_bytes, 10 * kKiB) << "what lies elsewhere as well need not be moved";
    EXPECT_EQ(state().segments()[1].status, SegmentStatus::kDrained);
    EXPECT_EQ(state().segments()[1].allocator.used_bytes(), 0u);
    for (int i = 0; i < 9; ++i) EXPECT_EQ(segments_of(format_text("d{}", i)), (Numbers{2}));
    put("n");
    EXPECT_EQ(segments_of("n"), (Numbers{2})) << "nothing new goes there";
}

TEST_F(Drains, GiveUpOnAValueAfterThreeTries) {
    const DrainReply created = drain({"node01:1"});
    for (int i = 0; i < 3; ++i) {
        run();
        ASSERT_EQ(active().size(), 1u) << i;
        finish(active()[0], StoreCode::kTransferFail);
    }
    run();
    run();
    EXPECT_EQ(active().size(), 0u);
    EXPECT_EQ(info(created.job).status, DrainStatus::kFailed);
    EXPECT_EQ(info(created.job).failed, 1u);
    EXPECT_TRUE(holds("k"));
}

TEST_F(Drains, WaitForWhatIsBeingWritten) {
    start("w", kKiB, {.preferred_segments = {"node01:1"}});
    const DrainReply created = drain({"node01:1"});
    run();
    finish(active().at(0));
    run();
    run();
    EXPECT_EQ(info(created.job).status, DrainStatus::kRunning);
    beat(kClient);
    end("w");
    run();
    run();
    ASSERT_EQ(active().size(), 1u);
    finish(active()[0]);
    run();
    run();
    EXPECT_EQ(info(created.job).status, DrainStatus::kSucceeded);
}

TEST_F(Drains, CanBeCancelled) {
    const DrainReply created = drain({"node01:1"}, {"node02:1"});
    run();
    auto t = transaction();
    EXPECT_EQ(cancel_drain(t, created.job, now_), StoreCode::kOk);
    EXPECT_EQ(cancel_drain(t, created.job, now_), StoreCode::kUnavailableInCurrentStatus);
    EXPECT_EQ(cancel_drain(t, {9, 9}, now_), StoreCode::kJobNotFound);
    EXPECT_EQ(info(created.job).status, DrainStatus::kCancelled);
    EXPECT_EQ(state().segments()[1].status, SegmentStatus::kOk);
    finish(active().at(0));
    EXPECT_EQ(segments_of("k"), (Numbers{2})) << "what was under way ends";
}

TEST_F(Drains, AreRefusedWhereTheyMakeNoSense) {
    EXPECT_EQ(drain({}).code, StoreCode::kInvalidParams);
    EXPECT_EQ(drain({"node01:1"}, {}, 0).code, StoreCode::kInvalidParams);
    EXPECT_EQ(drain({"node09:1"}).code, StoreCode::kSegmentNotFound);
    EXPECT_EQ(drain({"node01:1"}, {"node09:1"}).code, StoreCode::kSegmentNotFound);
    EXPECT_EQ(drain({"node01:1"}, {"node01:1"}).code, StoreCode::kInvalidParams);
    EXPECT_EQ(drain({"node01:1"}).code, StoreCode::kOk);
    EXPECT_EQ(drain({"node01:1"}).code, StoreCode::kUnavailableInCurrentStatus);
    EXPECT_EQ(list_drains(state()).size(), 1u);
}

TEST_F(Drains, SurviveTheLossOfTheirSegment) {
    const DrainReply created = drain({"node01:1"});
    run();
    auto t = transaction();
    goodbye(t, node(1), now_);
    run();
    run();
    EXPECT_EQ(info(created.job).status, DrainStatus::kSucceeded) << "nothing is left to be moved";
    EXPECT_EQ(info(created.job).active, 0u);
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
