// SPDX-License-Identifier: Apache-2.0
#include "store/master/testing/pool_tiers.h"

#include "store/master/ops/removal.h"
#include "store/master/ops/task_ops.h"

namespace mooncake::store {
namespace {

class Tiers : public PoolTiersTest {
protected:
    void SetUp() override {
        options_.evict_ahead = false;
        options_.offload = true;
    }
    static uint64_t bits(const TaskId& task) { return task.low & kTierTaskBit; }
};

TEST_F(Tiers, ADiskIsNoMemory) {
    const SegmentNumber disk = add_node_with_disk(1);
    EXPECT_EQ(state().segments().capacity(), kPool);
    EXPECT_EQ(state().segments().disk_capacity(), kDisk);
    EXPECT_EQ(state().segments().view().segments.size(), 1u);
    EXPECT_EQ(put("a", kPool), StoreCode::kOk);
    EXPECT_EQ(put("b", kPool + 1), StoreCode::kNoAvailableHandle) << "nothing is put on a disk";
    EXPECT_TRUE(state().segments().is_trusted(disk, now_));
    EXPECT_EQ(state().segments().disk_used_bytes(), 0u);
}

TEST_F(Tiers, WhatIsPutIsOffloadedAndStaysReadableWhenItLeavesMemory) {
    const SegmentNumber disk = add_node_with_disk(1);
    ASSERT_EQ(put("a", kPool), StoreCode::kOk);
    jobs();
    ASSERT_EQ(orders().size(), 1u);
    const TaskId task = orders()[0];
    EXPECT_NE(bits(task), 0u);
    EXPECT_EQ(order(task).targets[0].segment, disk);
    EXPECT_EQ(state().segments().disk_used_bytes(), kPool);
    EXPECT_EQ(finish(task), StoreCode::kOk);
    EXPECT_EQ(finish(task), StoreCode::kTaskNotFound) << "it has ended";
    EXPECT_EQ(segments_of("a"), (Numbers{1, disk}));

    ASSERT_EQ(put("b", kPool), StoreCode::kOk) << "the first leaves memory for it";
    EXPECT_EQ(segments_of("a"), (Numbers{disk}));
    EXPECT_EQ(exists("a"), 1);
    const GetReply reply = get_all({"a"});
    EXPECT_EQ(reply.items[0].code, StoreCode::kOk);
    EXPECT_EQ(reply.items[0].length, kPool);
    EXPECT_EQ(reply.replicas[0].segment, disk);
    EXPECT_EQ(object("a").shelf, Shelf::kNone) << "the master evicts nothing from disks";
    EXPECT_EQ(state().tenants()[TenantTable::kDefault].charged_bytes, kPool) << "memory alone is charged";
    EXPECT_EQ(state().tiers().totals.released, 1u);
}

TEST_F(Tiers, MemoryIsNamedBeforeDisks) {
    const SegmentNumber disk = add_node_with_disk(1), other = add_node_with_disk(2);
    put("a", kKiB, {.preferred_segments = {"node01:1"}});
    offload_all();
    const GetReply reply = get_all({"a"});
    ASSERT_EQ(reply.items[0].replica_count, 2u);
    EXPECT_EQ(reply.replicas[0].segment, 1u);
    EXPECT_EQ(reply.replicas[1].segment, disk);
    suspected(disk);
    EXPECT_EQ(get_all({"a"}).items[0].replica_count, 1u) << "one that fails is not named beside memory";
    suspected(1);
    EXPECT_EQ(get_all({"a"}).replicas[0].segment, 1u);
    EXPECT_NE(other, disk);
}

TEST_F(Tiers, APutThatNeedsWhatNoDiskHasIsToldWhenToComeBack) {
    add_node_with_disk(1);
    fill(8 * kKiB);
    const PutStartReply refused = start({{.key = "n", .length = 8 * kKiB}});
    EXPECT_EQ(refused.items[0].code, StoreCode::kNoAvailableHandle);
    EXPECT_GT(refused.retry_after, 0s);
    EXPECT_LE(refused.retry_after, 2s);
    EXPECT_EQ(state().values(), 8u) << "nothing was lost";
    EXPECT_GT(offload_all(), 0u);
    EXPECT_EQ(put("n", 8 * kKiB), StoreCode::kOk);
    EXPECT_EQ(state().values(), 9u);
    for (int i = 0; i < 8; ++i) EXPECT_EQ(exists(std::to_string(i)), 1) << i;
}

TEST_F(Tiers, WithForceWhatNoDiskHasGoesForGood) {
    options_.offload_force_evict = true;
    add_node_with_disk(1);
    fill(8 * kKiB);
    EXPECT_EQ(put("n", 8 * kKiB), StoreCode::kOk);
    EXPECT_EQ(state().values(), 8u);
    EXPECT_FALSE(holds("0"));
}

TEST_F(Tiers, WithoutOffloadingADiskChangesNothing) {
    options_.offload = false;
    add_node_with_disk(1);
    fill(8 * kKiB);
    EXPECT_EQ(put("n", 8 * kKiB), StoreCode::kOk);
    jobs();
    EXPECT_TRUE(orders().empty());
    EXPECT_FALSE(holds("0"));
}

TEST_F(Tiers, ANodeWithoutADiskEvictsAsEver) {
    add_node(1);
    add_node_with_disk(2, kKiB);
    for (int i = 0; i < 9; ++i) EXPECT_EQ(put(std::to_string(i), 8 * kKiB), StoreCode::kOk) << i;
}

TEST_F(Tiers, ADiskThatFailsThreeTimesKeepsNobodyWaitingUntilItWorksAgain) {
    add_node_with_disk(1);
    fill(8 * kKiB);
    for (int i = 0; i < 3; ++i) {
        EXPECT_EQ(start("n", 8 * kKiB).code, StoreCode::kNoAvailableHandle) << i;
        pass(1s);
        beat(node(1));
        jobs();
        ASSERT_FALSE(orders().empty());
        EXPECT_EQ(orders().size(), i == 0 ? 8u : 1u) << "one that fails is tried with one value";
        for (const TaskId& task : orders()) finish(task, StoreCode::kWriteFail);
        jobs();
        EXPECT_TRUE(orders().empty()) << "not at once";
    }
    EXPECT_EQ(put("n", 8 * kKiB), StoreCode::kOk) << "puts go on";
    pass(10s);
    beat(node(1));
    jobs();
    ASSERT_EQ(orders().size(), 1u);
    finish(orders()[0]);
    EXPECT_GT(offload_all(), 1u);
}

TEST_F(Tiers, TheWindowOfANodeBoundsWhatIsUnderWay) {
    add_node_with_disk(1, 1 << 22, 1 << 23);
    for (int i = 0; i < 32; ++i) put(std::to_string(i), 100 * kKiB);
    jobs();
    EXPECT_EQ(orders().size(), 32u) << "64 MiB at first";
    EXPECT_EQ(finish(orders()[0], StoreCode::kOk, 1, 1 << 20), StoreCode::kOk);
    for (const TaskId& task : orders()) finish(task);
    for (int i = 32; i < 64; ++i) put(std::to_string(i), 100 * kKiB);
    jobs();
    EXPECT_EQ(orders().size(), 10u) << "1 MiB now";
    EXPECT_EQ(offload_all(), 32u);
}

TEST_F(Tiers, TheQueueIsBoundedAndTheRestIsFoundLater) {
    options_.offload_queue_max = 3;
    add_node_with_disk(1);
    fill(kKiB);
    EXPECT_EQ(state().tiers().nodes.begin()->second.offloads.size(), 3u);
    EXPECT_GT(state().tiers().totals.offloads.no_room, 0u);
    for (int i = 0; i < 200; ++i) {
        offload_all();
        pass(10ms);
        ASSERT_LE(state().tiers().nodes.begin()->second.offloads.size(), 3u);
        if (put(format_text("n{}", i), kKiB) == StoreCode::kOk && i > 150) break;
    }
    EXPECT_GT(state().tiers().totals.offloads.ended, 3u);
    EXPECT_EQ(state().totals().evicted_objects, 0u) << "nothing was lost for that";
}

TEST_F(Tiers, OnEvictTheColdestAreWrittenAheadOfNeed) {
    options_.offload_on_evict = true;
    add_node_with_disk(1);
    for (int i = 0; i < 32; ++i) put(std::to_string(i), kKiB);
    EXPECT_EQ(offload_all(), 0u) << "there is plenty of memory";
    for (int i = 32; i < 64; ++i) put(std::to_string(i), kKiB);
    EXPECT_EQ(offload_all(), 4u) << "a sixteenth of it";
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(object(std::to_string(i)).on_disk) << i;
    for (int i = 0; i < 4; ++i) EXPECT_EQ(put(format_text("n{}", i), kKiB), StoreCode::kOk) << i;
    EXPECT_EQ(state().values(), 68u);
    EXPECT_GT(offload_all(), 0u) << "and so on";
}

TEST_F(Tiers, ALongValueFindsRoomAmongManyThatNoDiskHasYet) {
    options_.offload_on_evict = true;
    add_node_with_disk(1);
    fill(kKiB);
    offload_all();
    StoreCode code = StoreCode::kNoAvailableHandle;
    for (int i = 0; i < 20 && code != StoreCode::kOk; ++i) {
        const PutStartReply reply = start({{.key = "n", .length = kPool}});
        code = reply.items[0].code;
        EXPECT_TRUE(code == StoreCode::kOk || reply.retry_after > 0s) << i;
        offload_all();
    }
    EXPECT_EQ(code, StoreCode::kOk) << "what stands in its way goes to the disk, also behind others that are there";
    EXPECT_EQ(state().values(), 64u);
    EXPECT_EQ(state().totals().evicted_objects, 0u) << "nothing was lost";
}

TEST_F(Tiers, WhatIsReadMeanwhileIsNotTheColdestAnyMore) {
    options_.offload_on_evict = true;
    add_node_with_disk(1);
    fill(kKiB);
    get("0");
    pass(2s);
    offload_all();
    pass(2s);
    offload_all();
    EXPECT_FALSE(object("0").on_disk);
    EXPECT_TRUE(object("1").on_disk);
}

TEST_F(Tiers, AKeyThatIsBeingOffloadedCanBeRemovedAndReplaced) {
    const SegmentNumber disk = add_node_with_disk(1);
    put("a");
    put("b");
    jobs();
    const std::vector<TaskId> tasks = orders();
    ASSERT_EQ(tasks.size(), 2u);
    EXPECT_EQ(remove_key("a"), StoreCode::kOk);
    const PutStartItem again = upsert("b");
    EXPECT_EQ(again.code, StoreCode::kOk);
    EXPECT_EQ(end("b", again.generation), StoreCode::kOk);
    EXPECT_EQ(finish(tasks[0]), StoreCode::kTaskNotFound);
    EXPECT_EQ(finish(tasks[1]), StoreCode::kTaskNotFound);
    EXPECT_FALSE(holds("a"));
    EXPECT_EQ(segments_of("b"), (Numbers{1})) << "not what was there before";
    EXPECT_EQ(state().segments()[disk].allocator.used_bytes(), 0u);
    EXPECT_EQ(state().tiers().nodes.begin()->second.under_way, 0u);
    EXPECT_EQ(offload_all(), 1u);
    EXPECT_EQ(segments_of("b"), (Numbers{1, disk}));
}

TEST_F(Tiers, RemovalsReachDisksHoweverTheyAreAskedFor) {
    const SegmentNumber disk = add_node_with_disk(1);
    for (const char* key : {"a", "b", "c", "d"}) put(key);
    offload_all();
    EXPECT_EQ(remove_key("a"), StoreCode::kOk);
    upsert("b");
    end("b");
    EXPECT_EQ(segments_of("b"), (Numbers{1}));
    auto t = transaction();
    Removal removal(t, {.matches = [](std::string_view key) { return key == "c"; }, .force = true});
    removal.start(t, now_);
    while (!removal.done()) removal.remove(t, removal.choose(removal.look(t.state())), now_);
    EXPECT_EQ(removal.removed(), 1u);
    EXPECT_EQ(state().segments()[disk].allocator.used_blocks(), 1u) << "d";
    Removal all(t, {.force = true});
    all.start(t, now_);
    while (!all.done()) all.remove(t, all.choose(all.look(t.state())), now_);
    EXPECT_EQ(state().segments().disk_used_bytes(), 0u);
}

TEST_F(Tiers, AnOrderIsEndedByItsNodeAlone) {
    add_node_with_disk(1);
    add_node_with_disk(2);
    put("a", kKiB, {.preferred_segments = {"node01:1"}});
    jobs();
    ASSERT_EQ(orders().size(), 1u);
    EXPECT_EQ(finish(orders()[0], StoreCode::kOk, 2), StoreCode::kIllegalClient);
    EXPECT_EQ(finish({1, 5}, StoreCode::kOk, 1), StoreCode::kInvalidParams);
    EXPECT_EQ(finish({1, kTierTaskBit | 77}, StoreCode::kOk, 1), StoreCode::kTaskNotFound);
    EXPECT_EQ(finish({77, orders()[0].low}, StoreCode::kOk, 1), StoreCode::kTaskNotFound) << "of another life";
    EXPECT_EQ(finish(orders()[0]), StoreCode::kOk);
}

TEST_F(Tiers, AnOrderThatNobodyEndsIsTakenBack) {
    options_.processing_task_timeout = 5s;
    add_node_with_disk(1);
    put("a");
    jobs();
    ASSERT_EQ(orders().size(), 1u);
    const TaskId first = orders()[0];
    pass(6s);
    beat(node(1));
    jobs();
    EXPECT_EQ(state().find_tier_copy(first), 0u);
    EXPECT_EQ(state().tiers().totals.offloads.expired, 1u);
    EXPECT_TRUE(holds("a"));
}

TEST_F(Tiers, WhatGoesFromADiskGoesHereToo) {
    const SegmentNumber disk = add_node_with_disk(1);
    put("both");
    put("alone", kPool - kKiB);
    offload_all();
    const uint64_t both = object("both").generation, alone = object("alone").generation;
    put("n", kPool - kKiB);
    ASSERT_EQ(segments_of("alone"), (Numbers{disk}));
    EXPECT_EQ(gone("both", both + 1000), StoreCode::kOk) << "of another value";
    EXPECT_EQ(gone("stranger", 1), StoreCode::kOk);
    EXPECT_EQ(gone("both", both, 2), StoreCode::kSegmentNotFound);
    EXPECT_EQ(state().segments()[disk].allocator.used_blocks(), 2u);
    EXPECT_EQ(gone("both", both), StoreCode::kOk);
    EXPECT_EQ(segments_of("both"), (Numbers{1}));
    EXPECT_EQ(gone("alone", alone), StoreCode::kOk);
    EXPECT_EQ(get("alone").code, StoreCode::kObjectNotFound);
    auto t = transaction();
    EXPECT_EQ(replicas_gone(t, {.client = node(1), .segment = spec(1, kPool).id, .items = {}}, now_), StoreCode::kInvalidParams);
    EXPECT_EQ(replicas_gone(t, {.client = kClient, .segment = disk_spec(1).id, .items = {}}, now_), StoreCode::kIllegalClient);
}

TEST_F(Tiers, WhatIsGoneBeforeItsOrderHasEndedDoesNotCount) {
    add_node_with_disk(1);
    put("a");
    jobs();
    const TaskId task = orders().at(0);
    EXPECT_EQ(gone("a", object("a").generation), StoreCode::kOk);
    EXPECT_EQ(finish(task), StoreCode::kTaskNotFound);
    EXPECT_EQ(segments_of("a"), (Numbers{1})) << "else memory would be given up for nothing";
}

TEST_F(Tiers, AGroupThatLosesAMemberOnDiskIsLost) {
    add_node_with_disk(1);
    put("g1", 16 * kKiB, {}, "g");
    put("g2", 16 * kKiB, {}, "g");
    offload_all();
    put("n", kPool);
    ASSERT_TRUE(holds("g1") && holds("g2")) << "all of it has left memory";
    EXPECT_FALSE(object("g1").in_memory || object("g2").in_memory);
    gone("g1", object("g1").generation);
    EXPECT_FALSE(holds("g1"));
    EXPECT_FALSE(holds("g2"));
}

TEST_F(Tiers, AGroupLeavesMemoryOnlyWhenAllOfItIsOnDisks) {
    add_node_with_disk(1);
    put("g1", 16 * kKiB, {}, "g");
    put("g2", 16 * kKiB, {}, "g");
    jobs();
    const std::vector<TaskId> tasks = orders();
    ASSERT_EQ(tasks.size(), 2u);
    finish(tasks[0]);
    EXPECT_EQ(start("n", kPool).code, StoreCode::kNoAvailableHandle);
    finish(tasks[1]);
    EXPECT_EQ(start("n", kPool).code, StoreCode::kOk);
    EXPECT_EQ(exists("g1"), 1);
}

TEST_F(Tiers, ALeasedValueThatLeavesMemoryIsReadableThereUntilItsLeaseEnds) {
    add_node_with_disk(1);
    put("a", kPool);
    offload_all();
    get("a");
    EXPECT_EQ(start("n", kPool).code, StoreCode::kNoAvailableHandle);
    EXPECT_EQ(state().quarantine().bytes(), kPool);
    EXPECT_EQ(segments_of("a").size(), 1u) << "on the disk";
    pass(options_.lease_ttl);
    beat(node(1));
    EXPECT_EQ(start("n", kPool).code, StoreCode::kOk);
    EXPECT_EQ(exists("a"), 1);
}

TEST_F(Tiers, DisksAreLostWithTheirNodeAndWithoutIt) {
    const SegmentNumber disk = add_node_with_disk(1);
    add_node_with_disk(2);
    put("a", kKiB, {.preferred_segments = {"node01:1"}});
    put("b", kKiB, {.preferred_segments = {"node01:1"}});
    jobs();
    finish(orders().at(0));
    auto t = transaction();
    EXPECT_EQ(unmount_segment(t, {.client = node(1), .segment = disk_spec(1).id}, now_), StoreCode::kOk);
    EXPECT_FALSE(state().segments().exists(disk));
    EXPECT_TRUE(orders().empty()) << "the other order went with it";
    EXPECT_EQ(segments_of("a"), (Numbers{1}));
    EXPECT_EQ(segments_of("b"), (Numbers{1}));
    EXPECT_FALSE(object("a").queued || object("b").queued);
    EXPECT_EQ(mount(disk_spec(1), node(1)), StoreCode::kSegmentNotFound) << "a late message";
    EXPECT_EQ(goodbye(t, node(1), now_), StoreCode::kOk);
    EXPECT_FALSE(holds("a"));
}

TEST_F(Tiers, ADiskComesBackWithTheNextLifeOfItsNode) {
    const SegmentNumber disk = add_node_with_disk(1);
    put("a");
    put("b");
    offload_all();
    const uint64_t a = object("a").generation, b = object("b").generation;
    auto t = transaction();
    goodbye(t, node(1), now_);
    ASSERT_FALSE(holds("a"));
    remove_key("b");
    // Another process with the same directory.
    const ClientId next{2, 100};
    const std::vector<HeldObject> objects{held("a", 5, a), held("b", 5, b)};
    const HeldSegment report{.segment = disk_spec(1), .objects = objects};
    const RemountReply reply = remount(t, {.client = next, .segments = {&report, 1}}, now_);
    EXPECT_EQ(reply.segments[0].code, StoreCode::kOk);
    EXPECT_EQ(reply.segments[0].adopted, 1u);
    EXPECT_EQ(reply.segments[0].stale, 1u) << "it was removed";
    EXPECT_EQ(exists("a"), 1);
    EXPECT_EQ(segments_of("a"), (Numbers{state().segments().find(disk_spec(1).id)}));
    EXPECT_NE(state().segments().find(disk_spec(1).id), disk);
    EXPECT_EQ(state().tenants()[TenantTable::kDefault].charged_bytes, 0u);
}

TEST_F(Tiers, ANodeThatRestartsTakesItsDiskFromItsDeadSelf) {
    const SegmentNumber disk = add_node_with_disk(1);
    put("a");
    offload_all();
    const uint64_t a = object("a").generation;
    follows(node(1), false);  // its connection ended
    const ClientId next{2, 100};
    const std::vector<HeldObject> objects{held("a", 0, a)};
    const HeldSegment report{.segment = disk_spec(1), .objects = objects};
    auto t = transaction();
    EXPECT_EQ(remount(t, {.client = next, .segments = {&report, 1}}, now_).segments[0].adopted, 1u);
    EXPECT_FALSE(state().segments().exists(disk));
    EXPECT_EQ(exists("a"), 1);
}

TEST_F(Tiers, TheSameValueInMemoryAndOnDiskBecomesOne) {
    const std::vector<HeldObject> objects{held("a", 0, 5)};
    adopt(1, objects);
    const HeldSegment report{.segment = disk_spec(1), .objects = objects};
    auto t = transaction();
    EXPECT_EQ(remount(t, {.client = node(1), .segments = {&report, 1}}, now_).segments[0].adopted, 1u);
    EXPECT_TRUE(object("a").in_memory && object("a").on_disk);
    EXPECT_EQ(object("a").replicas.size(), 2u);
    EXPECT_EQ(state().tenants()[TenantTable::kDefault].charged_bytes, kKiB);
}

TEST_F(Tiers, ReportsOfADiskMayNameTheSamePlaceTwiceAndMoreThanItHas) {
    const std::vector<HeldObject> objects{held("a", 0, 5, kDisk), held("b", 0, 6, kDisk)};
    const HeldSegment report{.segment = disk_spec(1), .objects = objects, .more = true};
    auto t = transaction();
    EXPECT_EQ(remount(t, {.client = node(1), .segments = {&report, 1}}, now_).segments[0].adopted, 2u);
    EXPECT_EQ(exists("a") + exists("b"), 2) << "readable at once";
    EXPECT_EQ(gone("c", 7), StoreCode::kOk);
    const std::vector<HeldObject> rest{held("c", 0, 7), held("a", 9, 5, kDisk)};
    const HeldSegment last{.segment = disk_spec(1), .objects = rest};
    const RemountReply reply = remount(t, {.client = node(1), .segments = {&last, 1}}, now_);
    EXPECT_EQ(reply.segments[0].stale, 1u) << "it went while it was being told";
    EXPECT_EQ(reply.segments[0].adopted, 1u) << "known already, whatever it calls the place";
    EXPECT_EQ(object("a").replicas.size(), 1u);
}

TEST_F(Tiers, AValueOfAnEarlierLifeOnDiskIsReplacedByANewerOne) {
    add_node(2);
    const std::vector<HeldObject> objects{held("a", 0, 5)};
    const HeldSegment report{.segment = disk_spec(1), .objects = objects};
    auto t = transaction();
    remount(t, {.client = node(1), .segments = {&report, 1}}, now_);
    ASSERT_EQ(exists("a"), 1);
    upsert("a");
    EXPECT_EQ(end("a"), StoreCode::kOk);
    EXPECT_EQ(state().segments().disk_used_bytes(), 0u);
    EXPECT_TRUE(object("a").in_memory);
    EXPECT_FALSE(object("a").on_disk);
}

TEST_F(Tiers, ADrainCountsOnNoDiskOfItsOwnNode) {
    const SegmentNumber disk = add_node_with_disk(1);
    add_node(2);
    put("a", kKiB, {.preferred_segments = {"node01:1"}});
    offload_all();
    auto t = transaction();
    const DrainReply drain = create_drain(t, {.segments = {"node01:1"}, .targets = {}, .concurrency = 4}, now_);
    ASSERT_EQ(drain.code, StoreCode::kOk);
    EXPECT_EQ(state().segments()[disk].status, SegmentStatus::kOk) << "a drain is of memory";
    beat(node(2));
    jobs();
    ASSERT_EQ(state().tasks().processing().size(), 1u) << "it is moved";
    const TaskId task = state().tasks()[state().tasks().processing().first()].id;
    end_task(t, {.client = node(1), .task = task}, now_);
    for (int i = 0; i < 3; ++i) {
        pass(100ms);
        beat(node(1));
        beat(node(2));
        jobs();
    }
    const DrainInfo info = query_drain(state(), drain.job).value().info;
    EXPECT_EQ(info.status, DrainStatus::kSucceeded);
    EXPECT_NE(info.message.find("1 values are on the disks"), std::string::npos) << info.message;
    EXPECT_TRUE(object("a").in_memory && object("a").on_disk);
}

TEST_F(Tiers, CopiesGoFromMemoryToMemory) {
    add_node_with_disk(1);
    add_node_with_disk(2, kKiB);
    put("a", kKiB, {.preferred_segments = {"node01:1"}});
    offload_all();
    auto t = transaction();
    const TaskReply copy = create_task(t, {.type = TaskType::kCopy, .key = "a", .targets = {"node02:1"}}, now_);
    ASSERT_EQ(copy.code, StoreCode::kOk);
    beat(node(2));
    jobs();
    const CopyId id = state().tasks()[state().tasks().find(copy.task)].copy;
    ASSERT_NE(id, 0u);
    EXPECT_EQ(state().copy(id).source, 1u);
    EXPECT_FALSE(state().segments().is_disk(state().copy(id).targets[0].segment));
    EXPECT_EQ(remove_key("a"), StoreCode::kObjectHasReplicationTask) << "this one somebody asked for";
    end_task(t, {.client = node(1), .task = copy.task}, now_);
}

}  // namespace
}  // namespace mooncake::store
