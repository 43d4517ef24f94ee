// SPDX-License-Identifier: Apache-2.0
#include "store/master/testing/pool_tiers.h"

namespace mooncake::store {
namespace {

/// A value "a" that has left memory for a disk, where there is room again.
class Promotion : public PoolTiersTest {
protected:
    void SetUp() override {
        options_.evict_ahead = false;
        options_.offload = true;
        options_.promote = true;
    }
    void put_on_disk_alone(uint64_t length = 32 * kKiB) {
        disk_ = add_node_with_disk(1);
        put("a", length);
        offload_all();
        put("b", kPool);
        remove_key("b");
        ASSERT_EQ(segments_of("a"), (Numbers{disk_}));
    }
    const TierTotals& totals() { return state().tiers().totals; }

    SegmentNumber disk_ = 0;
};

TEST_F(Promotion, AtTheSecondReadAValueComesBackToMemory) {
    put_on_disk_alone();
    get("a");
    jobs();
    EXPECT_TRUE(orders().empty());
    EXPECT_EQ(totals().too_seldom, 1u);
    get("a");
    jobs();
    ASSERT_EQ(orders().size(), 1u);
    const Copy& first = order(orders()[0]);
    EXPECT_EQ(first.source, disk_);
    EXPECT_EQ(first.targets[0].segment, 1u);
    EXPECT_EQ(state().tenants()[TenantTable::kDefault].charged_bytes, 32 * kKiB) << "charged from the beginning";
    get("a");
    jobs();
    EXPECT_EQ(orders().size(), 1u) << "once";
    EXPECT_EQ(finish(orders()[0]), StoreCode::kOk);
    EXPECT_EQ(segments_of("a"), (Numbers{disk_, 1}));
    EXPECT_EQ(where("a").segment, 1u);
    EXPECT_NE(object("a").shelf, Shelf::kNone);
    EXPECT_EQ(totals().promotions.ended, 1u);
    EXPECT_EQ(totals().reads, 3u) << "the last one was of memory";
}

TEST_F(Promotion, NobodyReadsMemoryThatNobodyWasToldOf) {
    put_on_disk_alone();
    get("a");
    get("a");  // leases, but for the disk
    jobs();
    ASSERT_EQ(finish(orders().at(0)), StoreCode::kOk);
    put("b", kPool);  // needs all there is
    EXPECT_EQ(segments_of("a"), (Numbers{disk_}));
    EXPECT_EQ(state().quarantine().bytes(), 0u);
}

TEST_F(Promotion, MemoryThatAReaderWasToldOfStays) {
    put_on_disk_alone();
    get("a");
    get("a");
    jobs();
    ASSERT_EQ(finish(orders().at(0)), StoreCode::kOk);
    ASSERT_EQ(where("a").segment, 1u);  // asks for it
    EXPECT_EQ(start("b", kPool).code, StoreCode::kNoAvailableHandle);
    EXPECT_EQ(state().quarantine().bytes(), 32 * kKiB) << "readers keep the bytes";
    pass(state().options().lease_ttl + 1ms);
    put("b", kPool);
    EXPECT_EQ(segments_of("a"), (Numbers{disk_}));
}

TEST_F(Promotion, WhereTheDiskLosesItTheLeasesHoldTheMemory) {
    put_on_disk_alone();
    get("a");
    get("a");
    jobs();
    ASSERT_EQ(finish(orders().at(0)), StoreCode::kOk);
    gone("a", object("a").generation);
    EXPECT_EQ(segments_of("a"), (Numbers{1}));
    EXPECT_EQ(start("b", kPool).code, StoreCode::kNoAvailableHandle) << "it was promised to readers";
}

TEST_F(Promotion, ExistenceChecksAreNoReads) {
    put_on_disk_alone();
    for (int i = 0; i < 5; ++i) exists("a");
    jobs();
    EXPECT_TRUE(orders().empty());
}

TEST_F(Promotion, OneThatFailsLeavesTheValueOnDisk) {
    put_on_disk_alone();
    get("a");
    get("a");
    jobs();
    EXPECT_EQ(finish(orders().at(0), StoreCode::kTransferFail), StoreCode::kOk);
    EXPECT_EQ(segments_of("a"), (Numbers{disk_}));
    EXPECT_EQ(state().segments().used_bytes(), 0u) << "its memory is free again: the node has stopped";
    EXPECT_EQ(state().tenants()[TenantTable::kDefault].charged_bytes, 0u);
    EXPECT_EQ(totals().promotions.failed, 1u);
    EXPECT_EQ(state().tiers().nodes.begin()->second.failures, 0u) << "that is not what disks are blamed for";
}

TEST_F(Promotion, TheMemoryOfOneThatIsTakenBackIsInQuarantineUntilItsNodeHasStopped) {
    put_on_disk_alone();
    get("a");
    get("a");
    jobs();
    const TaskId task = orders().at(0);
    EXPECT_EQ(remove_key("a", /*force=*/true), StoreCode::kOk);
    EXPECT_EQ(state().quarantine().bytes(), 32 * kKiB) << "it may still be writing";
    EXPECT_EQ(state().segments().disk_used_bytes(), 0u);
    EXPECT_EQ(finish(task), StoreCode::kTaskNotFound);
    EXPECT_EQ(state().quarantine().bytes(), 0u);
}

TEST_F(Promotion, BytesInDoubtKeepItThere) {
    put_on_disk_alone();
    get("a");
    get("a");
    jobs();
    const TaskId task = orders().at(0);
    EXPECT_EQ(finish(task, StoreCode::kTransferFail, 1, 0, /*in_doubt=*/1), StoreCode::kOk);
    EXPECT_EQ(state().quarantine().bytes(), 32 * kKiB);
    EXPECT_EQ(finish(task, StoreCode::kTransferFail), StoreCode::kTaskNotFound) << "but heard";
    EXPECT_EQ(state().quarantine().bytes(), 0u);
}

TEST_F(Promotion, WhatWentFromTheDiskMeanwhileDoesNotComeBack) {
    put_on_disk_alone();
    get("a");
    get("a");
    jobs();
    const TaskId task = orders().at(0);
    gone("a", object("a").generation);
    EXPECT_FALSE(holds("a"));
    EXPECT_EQ(finish(task), StoreCode::kTaskNotFound);
    EXPECT_FALSE(holds("a"));
}

TEST_F(Promotion, AFullMemoryTakesNothingInForWhatWouldBeLost) {
    options_.offload_force_evict = true;
    put_on_disk_alone();
    put("c", kPool);
    get("a");
    get("a");
    jobs();
    EXPECT_EQ(totals().too_full, 1u);
    for (const TaskId& task : orders()) EXPECT_NE(order(task).source, disk_) << "offloads only";
}

TEST_F(Promotion, AValueOnDiskAsWellMakesRoomForOneThatIsRead) {
    put_on_disk_alone(8 * kKiB);
    for (int i = 0; i < 8; ++i) put(format_text("c{}", i), 8 * kKiB);
    offload_all();
    ASSERT_EQ(state().segments().used_bytes(), kPool);
    get("a");
    get("a");
    jobs();
    ASSERT_EQ(orders().size(), 1u);
    EXPECT_EQ(order(orders()[0]).source, disk_);
    EXPECT_EQ(state().values(), 9u) << "nothing was lost for it";
    finish(orders()[0]);
    EXPECT_TRUE(object("a").in_memory);
    EXPECT_EQ(totals().released, 2u);
}

TEST_F(Promotion, TheQueueIsBounded) {
    options_.promotion_queue_max = 1;
    disk_ = add_node_with_disk(1);
    for (int i = 0; i < 4; ++i) put(std::to_string(i), kKiB);
    offload_all();
    put("b", kPool);
    remove_key("b");
    for (int round = 0; round < 2; ++round)
        for (int i = 0; i < 4; ++i) get(std::to_string(i));
    EXPECT_EQ(state().tiers().nodes.begin()->second.promotions.size(), 1u);
    EXPECT_EQ(totals().promotions.no_room, 3u);
}

TEST_F(Promotion, OffMeansOff) {
    options_.promote = false;
    put_on_disk_alone();
    for (int i = 0; i < 10; ++i) get("a");
    jobs();
    EXPECT_TRUE(orders().empty());
    EXPECT_EQ(totals().reads, 10u) << "counted all the same";
}

TEST_F(Promotion, ATenantOverItsQuotaGetsNothingBack) {
    options_.tenants = true;
    tenant_ = "t";
    auto t = transaction();
    t.apply(QuotaSet{.tenant = "t", .bytes = 40 * kKiB});
    disk_ = add_node_with_disk(1);
    put("a", 32 * kKiB);
    offload_all();
    put("b", 32 * kKiB);
    ASSERT_EQ(segments_of("a"), (Numbers{disk_})) << "the quota is of memory";
    get("a");
    get("a");
    for (const TaskId& task : orders()) finish(task);
    jobs();
    for (const TaskId& task : orders()) EXPECT_NE(order(task).source, disk_);
    EXPECT_FALSE(object("a").in_memory);
}

}  // namespace
}  // namespace mooncake::store
