// SPDX-License-Identifier: Apache-2.0
#include "store/master/testing/pool_tasks.h"

namespace mooncake::store {
namespace {

class Drains : public PoolTasksTest {
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
    /// Every move that was begun succeeds.
    void run_to_the_end(const JobId& job) {
        for (int i = 0; i < 100 && info(job).status == DrainStatus::kRunning; ++i) {
            beat(kClient);
            run();
            for (const TaskId& task : active()) finish(task, StoreCode::kOk, query_task(state(), task).value().info.client);
        }
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

TEST_F(Drains, FailWithTheLossOfTheirSegment) {
    const DrainReply created = drain({"node01:1"});
    run();
    auto t = transaction();
    goodbye(t, node(1), now_);
    run();
    run();
    EXPECT_EQ(info(created.job).status, DrainStatus::kFailed) << "what it held is lost, not moved";
    EXPECT_EQ(info(created.job).message, "segment lost: node01:1");
    EXPECT_EQ(info(created.job).active, 0u);
}

TEST_F(Drains, FinishTheOthersWhenOneOfTheirSegmentsIsLost) {
    add_node(3);
    put("l", kKiB, {.preferred_segments = {"node03:1"}});
    const DrainReply created = drain({"node01:1", "node03:1"}, {"node02:1"});
    auto t = transaction();
    goodbye(t, node(1), now_);
    run();
    EXPECT_EQ(info(created.job).status, DrainStatus::kRunning);
    ASSERT_EQ(active().size(), 1u);
    finish(active()[0], StoreCode::kOk, node(3));
    run();
    EXPECT_EQ(info(created.job).status, DrainStatus::kFailed);
    EXPECT_EQ(info(created.job).succeeded, 1u);
    EXPECT_EQ(state().segments()[3].status, SegmentStatus::kOk);
}

TEST_F(Drains, GiveTheirSegmentsBackWhenTheyFail) {
    put("full", kPool, {.hard_pin = true, .preferred_segments = {"node02:1"}});
    const DrainReply created = drain({"node01:1"}, {"node02:1"});
    for (int i = 0; i < 60 && info(created.job).status == DrainStatus::kRunning; ++i) run();
    EXPECT_EQ(info(created.job).status, DrainStatus::kFailed);
    EXPECT_EQ(state().segments()[1].status, SegmentStatus::kOk);
    EXPECT_EQ(put("n", kKiB, {.preferred_segments = {"node01:1"}}), StoreCode::kOk);
    EXPECT_EQ(drain({"node01:1"}).code, StoreCode::kOk) << "it may be tried again";
}

TEST_F(Drains, WaitForRoomAsLongAsLeasesLastAndThenFail) {
    put("full", kPool, {.hard_pin = true, .preferred_segments = {"node02:1"}});
    const DrainReply created = drain({"node01:1"}, {"node02:1"});
    const Time begun = now_;
    run();
    EXPECT_EQ(info(created.job).blocked, 1u) << "it cannot be moved now";
    for (int i = 0; i < 60 && info(created.job).status == DrainStatus::kRunning; ++i) run();
    EXPECT_EQ(info(created.job).status, DrainStatus::kFailed);
    EXPECT_EQ(info(created.job).failed, 1u);
    EXPECT_EQ(info(created.job).message, "1 values could not be moved: NO_AVAILABLE_HANDLE");
    EXPECT_GE(now_ - begun, state().options().lease_ttl) << "what stands in the way may only be leased";
    EXPECT_TRUE(holds("k"));
}

TEST_F(Drains, MoveWhatFoundNoRoomOnceThereIsSome) {
    put("full", kPool, {.hard_pin = true, .preferred_segments = {"node02:1"}});
    const DrainReply created = drain({"node01:1"}, {"node02:1"});
    run();
    remove_key("full");
    for (int i = 0; i < 20 && active().empty(); ++i) run();
    ASSERT_EQ(active().size(), 1u);
    finish(active()[0]);
    run();
    EXPECT_EQ(info(created.job).status, DrainStatus::kSucceeded);
    EXPECT_EQ(info(created.job).failed, 0u);
}

TEST_F(Drains, EvictNothingThatTheyHaveMoved) {
    put("full", kPool - 4 * kKiB, {.hard_pin = true, .preferred_segments = {"node02:1"}});
    for (int i = 0; i < 20; ++i) put(format_text("d{}", i), kKiB, {.preferred_segments = {"node01:1"}});
    const DrainReply created = drain({"node01:1"}, {"node02:1"});
    run_to_the_end(created.job);
    EXPECT_EQ(info(created.job).status, DrainStatus::kFailed);
    EXPECT_EQ(info(created.job).succeeded, 4u) << "there is no room for more";
    EXPECT_EQ(info(created.job).failed, 17u);
    EXPECT_EQ(state().totals().evicted_objects, 0u);
    EXPECT_EQ(state().values(), 22u);
}

TEST_F(Drains, EvictNothingThatAnotherDrainHasMoved) {
    add_node(3);
    put("full", kPool - 2 * kKiB, {.hard_pin = true, .preferred_segments = {"node02:1"}});
    for (int i = 0; i < 4; ++i) put(format_text("d{}", i), kKiB, {.preferred_segments = {"node03:1"}});
    start("w", kKiB, {.preferred_segments = {"node01:1"}});  // keeps the first from ending
    const DrainReply one = drain({"node01:1"}, {"node02:1"}), two = drain({"node03:1"}, {"node02:1"});
    run_to_the_end(two.job);
    EXPECT_EQ(info(one.job).status, DrainStatus::kRunning);
    EXPECT_EQ(state().totals().evicted_objects, 0u);
    EXPECT_EQ(info(one.job).succeeded + info(two.job).succeeded, 2u);
}

TEST_F(Drains, EvictNothingWhoseOtherReplicaTheyLetGo) {
    remove_key("k");
    put("full", kPool - kKiB, {.hard_pin = true, .preferred_segments = {"node02:1"}});
    put("both", kKiB, {.replica_num = 2, .preferred_segments = {"node01:1", "node02:1"}});
    ASSERT_EQ(segments_of("both"), (Numbers{1, 2}));
    put("k", kKiB, {.preferred_segments = {"node01:1"}});
    const DrainReply created = drain({"node01:1"}, {"node02:1"});
    run_to_the_end(created.job);
    EXPECT_EQ(info(created.job).succeeded, 1u);
    EXPECT_TRUE(holds("both"));
    EXPECT_TRUE(holds("k"));
}

TEST_F(Drains, EvictNothingThatTheyHaveYetToMove) {
    put("full", kPool - kKiB, {.hard_pin = true, .preferred_segments = {"node02:1"}});
    put("both", kKiB, {.replica_num = 2, .preferred_segments = {"node01:1", "node02:1"}});
    ASSERT_EQ(segments_of("both"), (Numbers{1, 2}));
    drain({"node01:1"}, {"node02:1"});  // comes to "k" first
    run();
    EXPECT_TRUE(holds("both"));
}

TEST_F(Drains, EvictNoGroupOfWhichTheyHaveMovedAMember) {
    remove_key("k");
    put("full", kPool - 2 * kKiB, {.hard_pin = true, .preferred_segments = {"node02:1"}});
    put("there", kKiB, {.preferred_segments = {"node02:1"}}, "group");
    put("here", kKiB, {.preferred_segments = {"node01:1"}}, "group");
    put("k", kKiB, {.preferred_segments = {"node01:1"}});
    const DrainReply created = drain({"node01:1"}, {"node02:1"});
    run_to_the_end(created.job);
    EXPECT_EQ(state().totals().evicted_objects, 0u);
    EXPECT_EQ(info(created.job).succeeded, 1u);
}

TEST_F(Drains, MakeRoomAmongColdValuesOfOthers) {
    for (int i = 0; i < 64; ++i) ASSERT_EQ(put(format_text("cold{}", i), kKiB, {.preferred_segments = {"node02:1"}}), StoreCode::kOk);
    for (int i = 0; i < 20; ++i) put(format_text("d{}", i), kKiB, {.preferred_segments = {"node01:1"}});
    const DrainReply created = drain({"node01:1"});
    run_to_the_end(created.job);
    EXPECT_EQ(info(created.job).status, DrainStatus::kSucceeded) << info(created.job).message;
    for (int i = 0; i < 20; ++i) EXPECT_TRUE(holds(format_text("d{}", i))) << i;
    EXPECT_EQ(state().totals().evicted_objects, 21u);
}

TEST_F(Drains, ThatAreOverKeepNothingFromBeingEvicted) {
    put("full", kPool - kKiB, {.hard_pin = true, .preferred_segments = {"node02:1"}});
    run_to_the_end(drain({"node01:1"}, {"node02:1"}).job);
    ASSERT_EQ(segments_of("k"), (Numbers{2}));
    add_node(3);
    put("n", kKiB, {.preferred_segments = {"node03:1"}});
    run_to_the_end(drain({"node03:1"}, {"node02:1"}).job);
    EXPECT_EQ(segments_of("n"), (Numbers{2}));
    EXPECT_FALSE(holds("k"));
}

TEST_F(Drains, SayThatTheirTargetIsGone) {
    const DrainReply created = drain({"node01:1"}, {"node02:1"});
    auto t = transaction();
    goodbye(t, node(2), now_);
    run_to_the_end(created.job);
    EXPECT_EQ(info(created.job).status, DrainStatus::kFailed);
    EXPECT_EQ(info(created.job).message, "1 values could not be moved: SEGMENT_NOT_FOUND");
}

TEST_F(Drains, GoOnAtOnceWhenANodeComes) {
    put("full", kPool, {.hard_pin = true, .preferred_segments = {"node02:1"}});
    const DrainReply created = drain({"node01:1"});
    run(10ms);
    ASSERT_EQ(info(created.job).blocked, 1u);
    add_node(3);
    run(10ms);
    ASSERT_EQ(active().size(), 1u);
    finish(active()[0]);
    run(10ms);
    EXPECT_EQ(info(created.job).status, DrainStatus::kSucceeded);
}

TEST_F(Drains, TryAgainWhatTheyHadGivenUpWhenANodeComes) {
    put("full", kPool, {.hard_pin = true, .preferred_segments = {"node02:1"}});
    start("w", kKiB, {.preferred_segments = {"node01:1"}});  // keeps the drain from ending
    const DrainReply created = drain({"node01:1"});
    for (int i = 0; i < 40 && info(created.job).failed == 0; ++i) {
        beat(kClient);
        run();
    }
    ASSERT_EQ(info(created.job).failed, 1u);
    add_node(3);
    run(10ms);
    ASSERT_EQ(active().size(), 1u);
    finish(active()[0]);
    EXPECT_EQ(info(created.job).failed, 0u);
    end("w");
    run_to_the_end(created.job);
    EXPECT_EQ(info(created.job).status, DrainStatus::kSucceeded);
}

TEST_F(Drains, CountATryThatANewNodeDidNotHelp) {
    put("full", kPool, {.hard_pin = true, .preferred_segments = {"node02:1"}});
    const DrainReply created = drain({"node01:1"}, {"node02:1"});
    run(10ms);
    add_node(3);
    const Time begun = now_;
    run_to_the_end(created.job);
    EXPECT_EQ(info(created.job).status, DrainStatus::kFailed) << "it is not among the targets";
    EXPECT_GE(now_ - begun, state().options().lease_ttl);
    EXPECT_EQ(info(created.job).failed, 1u);
}

TEST_F(Drains, PushNoTasksOutThatOthersAskedFor) {
    options_.finished_tasks_max = 2;
    use(options_);
    log_.clear();
    SetUp();
    const TaskReply mine = copy("k", {"node01:1"});
    ASSERT_EQ(status(mine.task), TaskStatus::kSuccess);
    for (int i = 0; i < 9; ++i) put(format_text("d{}", i), kKiB, {.preferred_segments = {"node01:1"}});
    const DrainReply created = drain({"node01:1"});
    for (int i = 0; i < 20 && info(created.job).status == DrainStatus::kRunning; ++i) {
        run();
        for (const TaskId& task : active()) finish(task);
    }
    EXPECT_EQ(info(created.job).status, DrainStatus::kSucceeded);
    EXPECT_EQ(status(mine.task), TaskStatus::kSuccess);
}

TEST_F(Drains, MoveTheValuesOfATenantThatHasUsedUpItsQuota) {
    options_.tenants = true;
    use(options_);
    log_.clear();
    tenant_ = "a";
    auto t = transaction();
    set_quota(t, "a", kKiB);
    SetUp();
    ASSERT_TRUE(holds("k"));
    drain({"node01:1"});
    run();
    EXPECT_EQ(active().size(), 1u) << "in the end it uses no more than before";
}

/// Node 2 holds the other replica of what is drained from node 1; node 3 is empty.
class DrainsBesideATroubledNode : public Drains {
protected:
    void SetUp() override {
        Drains::SetUp();
        add_node(3);
        remove_key("k");
        put("both", kKiB, {.replica_num = 2, .preferred_segments = {"node01:1", "node02:1"}});
        ASSERT_EQ(segments_of("both"), (Numbers{1, 2}));
    }
    void expect_a_move() {
        EXPECT_EQ(segments_of("both"), (Numbers{1, 2})) << "the one here may be the last that can be read";
        ASSERT_EQ(active().size(), 1u);
        finish(active()[0]);
        EXPECT_EQ(segments_of("both"), (Numbers{2, 3}));
    }
};

TEST_F(DrainsBesideATroubledNode, MoveWhatLiesElsewhereOnlyWhereNobodyListens) {
    follows(node(2), false);
    drain({"node01:1"});
    jobs();
    expect_a_move();
}

TEST_F(DrainsBesideATroubledNode, MoveWhatLiesElsewhereOnlyWhereTransfersFail) {
    suspected(2);
    drain({"node01:1"});
    jobs();
    expect_a_move();
}

TEST_F(DrainsBesideATroubledNode, MoveWhatLiesElsewhereOnlyWhereNobodyIsHeard) {
    pass(1s);
    beat(node(1));
    beat(node(3));
    drain({"node01:1"});
    jobs();
    expect_a_move();
}

TEST_F(DrainsBesideATroubledNode, GiveUpNothingWhenNearlyAllAreSilent) {
    pass(1s);
    drain({"node01:1"});
    jobs();
    EXPECT_EQ(segments_of("both"), (Numbers{1, 2})) << "for placement the fault would be ours; here doubt is enough";
}

TEST_F(DrainsBesideATroubledNode, MoveWhatLiesElsewhereOnlyWhereTheNodeHasNotReportedYet) {
    auto t = transaction();
    t.apply(Restarted{.now = now_});
    for (const uint64_t number : {1, 3}) {
        attach(node(number));
        const SegmentSpec segment = spec(number, kPool);
        EXPECT_EQ(mount_segment(t, {.client = node(number), .segment = segment}, now_), StoreCode::kOk);
    }
    drain({"node01:1"});
    jobs();
    expect_a_move();
}

TEST_F(DrainsBesideATroubledNode, LetAReplicaGoWhereTheOtherIsWell) {
    drain({"node01:1"});
    jobs();
    EXPECT_EQ(segments_of("both"), (Numbers{2}));
}

}  // namespace
}  // namespace mooncake::store
