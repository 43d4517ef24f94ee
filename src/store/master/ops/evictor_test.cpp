// SPDX-License-Identifier: Apache-2.0
// Eviction on behalf of a put: what goes, what stays, and what a refused caller is told.
#include "store/master/ops/evictor.h"
#include "store/master/testing/pool.h"

namespace mooncake::store {
namespace {

class Reclaim : public PoolTest {
protected:
    void SetUp() override { add_node(1); }
    std::string held() {  // the keys that are there, one digit each
        std::string keys;
        for (const char* key : {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"})
            if (holds(key)) keys += key;
        return keys;
    }
};

TEST_F(Reclaim, TakesTheLeastRecentlyUsed) {
    ASSERT_EQ(fill(kPool / 4), 4);
    get("0");
    pass(11s);
    ASSERT_EQ(put("4", kPool / 4), StoreCode::kOk);
    EXPECT_EQ(held(), "0234");
}

TEST_F(Reclaim, EvictsNoMoreThanNeeded) {
    fill(kPool / 4);
    put("4", 64);
    EXPECT_EQ(held(), "1234");
    put("5", kPool / 4 - 64);
    EXPECT_EQ(held(), "12345");
}

TEST_F(Reclaim, ServesABatchLargerThanWhatIsFree) {
    fill(kPool / 8);
    std::vector<std::string> names;
    std::vector<PutItem> items;
    for (int i = 0; i < 8; ++i) names.push_back("n" + std::to_string(i));
    for (const std::string& name : names) items.push_back({.key = name, .length = kPool / 8});
    for (const PutStartItem& item : start(items).items) EXPECT_EQ(item.code, StoreCode::kOk);
    EXPECT_EQ(held(), "");
}

TEST_F(Reclaim, NeverEvictsWhatTheSameBatchIsWriting) {
    const PutStartReply reply = start(
        {{.key = "a", .length = kPool / 2}, {.key = "b", .length = kPool / 2}, {.key = "c", .length = kPool / 2}});
    EXPECT_EQ(reply.items[2].code, StoreCode::kNoAvailableHandle);
    EXPECT_EQ(end("a"), StoreCode::kOk);
    EXPECT_EQ(end("b"), StoreCode::kOk);
}

TEST_F(Reclaim, ProbesNeitherKeepAliveNorMakeYounger) {
    fill(kPool / 4);
    for (int round = 0; round < 100; ++round) {
        exists("0");
        pass(11s);
        beat(node(1));
    }
    put("4", kPool / 4);
    EXPECT_EQ(held(), "1234");
}

TEST_F(Reclaim, LooksElsewhereWhileAProbedObjectIsSoftlyLeased) {
    fill(kPool / 4);
    exists("0");
    put("4", kPool / 4);
    EXPECT_EQ(held(), "0234");
    pass(10s);
    put("5", kPool / 4);
    EXPECT_EQ(held(), "2345") << "no soft_lease any more, and still the coldest";
}

TEST_F(Reclaim, ServesABatchLargerThanWhatIsFreeThoughEveryKeyWasProbed) {
    constexpr uint64_t kNodeBytes = 3000 * kKiB + kKiB / 2;  // no whole number of values, and more of them than are set aside for one
    add_node(2, kNodeBytes);
    add_node(3, kNodeBytes);
    const int count = fill(kKiB) - 1;  // the two halves fit nothing
    ASSERT_GT(count, Evictor::kSetAsideMax);
    std::vector<std::string> names;
    for (int i = 0; i < count; ++i) names.push_back(std::to_string(i));
    for (int round = 0; round < 3; ++round) {
        const std::vector<std::string_view> keys(names.begin(), names.end());
        auto t = transaction();
        exist(t, {.keys = keys}, now_);
        for (std::string& name : names) name += 'n';
        std::vector<PutItem> items;
        for (const std::string& name : names) items.push_back({.key = name, .length = kKiB});
        for (const PutStartItem& item : start(items).items) ASSERT_EQ(item.code, StoreCode::kOk) << round;
        for (const std::string& name : names) ASSERT_EQ(end(name), StoreCode::kOk);
    }
}

TEST_F(Reclaim, AProbeOfEveryKeyCannotStopAPut) {
    fill(kPool / 8);
    for (int round = 0; round < 20; ++round) {
        for (int i = 0; i < 40; ++i) exists(std::to_string(i));
        ASSERT_EQ(put(std::to_string(8 + round), kPool / 8), StoreCode::kOk) << round;
        pass(1s);
        beat(node(1));
    }
}

TEST_F(Reclaim, FindsAHoleAlsoWhereTheColdestStandAmongWritesAndAllAreSoftlyLeased) {
    constexpr uint64_t kUnit = kPool / 16;
    for (int i = 0; i < 4; ++i) {  // one value between two unfinished writes, four times
        ASSERT_EQ(start("w" + std::to_string(i), kUnit).code, StoreCode::kOk);
        ASSERT_EQ(put(std::to_string(i), kUnit), StoreCode::kOk);
    }
    for (int i = 4; i < 12; ++i) ASSERT_EQ(put(std::to_string(i), kUnit), StoreCode::kOk);
    for (int i = 0; i < 12; ++i) EXPECT_EQ(exists(std::to_string(i)), 1);
    EXPECT_EQ(put("large", 2 * kUnit), StoreCode::kOk);
    EXPECT_EQ(put("larger", 4 * kUnit), StoreCode::kOk);
}

TEST_F(Reclaim, RefusesWithAHintWhenAllIsLeased) {
    fill(kPool / 4);
    for (const char* key : {"0", "1", "2", "3"}) {
        get(key);
        pass(1s);
    }
    const PutStartReply refused = start({{.key = "4", .length = kPool / 4}});
    EXPECT_EQ(refused.items[0].code, StoreCode::kNoAvailableHandle);
    EXPECT_EQ(refused.retry_after, 6s) << "the lease of 0";
    EXPECT_EQ(held(), "123") << "which goes, so that the memory is there by then";
    start({{.key = "4", .length = kPool / 4}});
    EXPECT_EQ(held(), "123") << "enough is on its way";
    pass(3s);
    for (const char* key : {"1", "2", "3"}) get(key);
    pass(3s);
    EXPECT_EQ(put("4", kPool / 4), StoreCode::kOk) << "although readers kept the others leased";
}

TEST_F(Reclaim, NeverTouchesHardPinned) {
    put("0", kPool / 2, {.hard_pin = true});
    put("1", kPool / 2);
    pass(60s);
    beat(node(1));
    EXPECT_EQ(put("2", kPool / 2), StoreCode::kOk);
    EXPECT_EQ(put("3", kPool / 2), StoreCode::kOk);
    EXPECT_EQ(held(), "03");
    EXPECT_EQ(start("4", kPool).code, StoreCode::kNoAvailableHandle);
    EXPECT_TRUE(holds("0"));
}

TEST_F(Reclaim, TakesSoftPinnedOnlyAfterAllOthers) {
    put("0", kPool / 4, {.soft_pin = SoftPinAction::kEnable});
    put("1", kPool / 4);
    put("2", kPool / 4);
    put("3", kPool / 4);
    put("4", kPool / 4);
    EXPECT_EQ(held(), "0234");
    put("5", 3 * kPool / 4);
    EXPECT_EQ(held(), "05");
    EXPECT_EQ(put("6", kPool), StoreCode::kOk);
    EXPECT_EQ(held(), "6");
}

TEST_F(Reclaim, KeepsSoftPinnedWhereToldTo) {
    use({.evict_soft_pinned = false});
    log_.clear();
    add_node(1);
    put("0", kPool / 2, {.soft_pin = SoftPinAction::kEnable, .soft_pin_ttl = 60s});
    put("1", kPool / 2);
    exists("0");
    EXPECT_EQ(put("2", kPool / 2), StoreCode::kOk);
    EXPECT_EQ(start("3", kPool).code, StoreCode::kNoAvailableHandle);
    EXPECT_TRUE(holds("0"));
    pass(61s);
    attach(node(1));
    EXPECT_EQ(put("3", kPool), StoreCode::kOk) << "the pin is over";
}

TEST_F(Reclaim, MakesAHoleForALargeObjectAmongSmallOnes) {
    ASSERT_EQ(fill(256), 256);
    // Used in an order that scatters the cold ones over the whole segment.
    for (int i = 1; i < 256; i += 2) get(std::to_string(i));
    pass(11s);
    beat(node(1));
    EXPECT_EQ(put("large", 16 * kKiB), StoreCode::kOk);
    EXPECT_LE(state().segments().used_bytes(), kPool);
    EXPECT_GE(state().objects().size(), 256u - 2 * 64) << "at most twice as many bytes as it needs";
}

TEST_F(Reclaim, DoesNotEvictForAHoleThatCannotBe) {
    ASSERT_EQ(fill(256), 256);
    for (int i = 0; i < 256; i += 8) get(std::to_string(i));  // leases every 2 KiB
    const PutStartReply reply = start({{.key = "large", .length = 16 * kKiB}});
    EXPECT_EQ(reply.items[0].code, StoreCode::kNoAvailableHandle);
    EXPECT_GT(reply.retry_after, 0s);
    EXPECT_GE(state().objects().size(), 256u - 64);
}

TEST_F(Reclaim, EvictsAGroupAsAWhole) {
    put("0", kPool / 4, {}, "g");
    put("1", kPool / 4);
    put("2", kPool / 4, {}, "g");
    put("3", kPool / 4);
    put("4", kPool / 4);
    EXPECT_EQ(held(), "0234") << "the group is as young as its youngest member";
    put("5", kPool / 4);
    EXPECT_EQ(held(), "345");
}

TEST_F(Reclaim, ALeaseOnOneMemberKeepsTheGroup) {
    put("0", kPool / 4, {}, "g");
    put("1", kPool / 4, {}, "g");
    put("2", kPool / 4);
    put("3", kPool / 4);
    get("0");
    put("4", kPool / 2);
    EXPECT_EQ(held(), "014");
}

TEST_F(Reclaim, PrefersFreeSpaceOnAnotherNode) {
    fill(kPool / 4);
    add_node(2);
    for (int i = 4; i < 8; ++i) put(std::to_string(i), kPool / 4);
    EXPECT_EQ(held(), "01234567");
}

TEST_F(Reclaim, MakesRoomForSecondReplicasToo) {
    add_node(2);
    for (int i = 0; i < 8; ++i) put(std::to_string(i), kPool / 4);
    const PutStartReply reply = start({{.key = "8", .length = kPool / 4}}, {.replica_num = 2});
    EXPECT_EQ(reply.items[0].replica_count, 2u);
}

class Watermark : public Reclaim {};

TEST_F(Watermark, EvictsByBytesDownToTheRatioBelow) {
    fill(256);
    const EvictionRun run = jobs();
    EXPECT_NEAR(static_cast<double>(run.bytes), 0.15 * kPool, 0.015 * kPool);
    EXPECT_EQ(jobs().entries, 0u);
}

TEST_F(Watermark, DoesNothingBelow) {
    fill(256, 229);  // 89.4 %
    EXPECT_EQ(jobs().entries, 0u);
}

TEST_F(Watermark, BreaksNoLeaseOfEitherKind) {
    fill(256);
    for (int i = 0; i < 256; ++i) i % 2 == 0 ? exists(std::to_string(i)) : static_cast<int>(get(std::to_string(i)).code);
    EXPECT_EQ(jobs().entries, 0u);
    pass(10s);
    beat(node(1));
    EXPECT_GT(jobs().entries, 30u);
}

TEST_F(Watermark, CountsWhatIsInQuarantineAsFreeToBe) {
    fill(256);
    for (int i = 0; i < 64; ++i) {
        get(std::to_string(i));
        remove_key(std::to_string(i), true);
    }
    EXPECT_EQ(jobs().entries, 0u);
}

TEST_F(Watermark, TakesSoftPinnedDownToTheLowerBoundOnly) {
    for (int i = 0; i < 256; ++i) put(std::to_string(i), 256, {.soft_pin = SoftPinAction::kEnable});
    const EvictionRun run = jobs();
    EXPECT_NEAR(static_cast<double>(run.bytes), 0.10 * kPool, 0.01 * kPool) << "just below the watermark";
}

TEST_F(Watermark, IsBoundedPerRun) {
    use({.eviction_ratio = 0.0, .high_watermark = 0.0, .evict_ahead = true});
    log_.clear();
    add_node(1, 4 * kPool);
    fill(64, 10'000);
    EvictionRun run = jobs();
    EXPECT_EQ(run.entries, 4096u);
    EXPECT_TRUE(run.more);
    jobs();
    run = jobs();
    EXPECT_FALSE(run.more);
    EXPECT_EQ(state().objects().size(), 0u);
}

/// Small values may go many at a time.
class LargePool : public PoolTest {
protected:
    static constexpr uint64_t kValues = 8192;
    void SetUp() override { add_node(1, kValues * kKiB); }
};

TEST_F(LargePool, ForABatchOfOneLengthMakesRoomForManyAtATimeAndForNoMore) {
    std::vector<std::string> names;
    for (uint64_t i = 0; i < kValues + 101; ++i) names.push_back(std::to_string(i));
    for (uint64_t i = 0; i < kValues; ++i) ASSERT_EQ(put(names[i]), StoreCode::kOk);
    std::vector<PutItem> items;
    for (uint64_t i = kValues; i < names.size(); ++i) items.push_back({.key = names[i], .length = kKiB});
    const PutStartReply reply = start(items);
    uint64_t side_by_side = 0;
    for (size_t i = 0; i < reply.items.size(); ++i) {
        ASSERT_EQ(reply.items[i].code, StoreCode::kOk);
        side_by_side += i > 0 && reply.replicas[i].offset == reply.replicas[i - 1].offset + kKiB;
    }
    EXPECT_EQ(state().totals().evicted_objects, items.size());
    EXPECT_GE(side_by_side, items.size() - 1 - items.size() / 32) << "what was put together and went together is one range";
    for (uint64_t i = 0; i < items.size(); ++i) EXPECT_EQ(exists(names[i]), 0) << "the coldest went";
    EXPECT_EQ(exists(names[items.size()]), 1);
}

TEST_F(LargePool, ForABatchOfManyLengthsMakesRoomForEachAlone) {
    for (uint64_t i = 0; i < kValues / 2; ++i) {
        ASSERT_EQ(put("short" + std::to_string(i), kKiB / 2), StoreCode::kOk);
        ASSERT_EQ(put("long" + std::to_string(i), kKiB / 2 * 3), StoreCode::kOk);
    }
    ASSERT_EQ(state().totals().evicted_objects, 0u);
    start({{.key = "a", .length = kKiB / 2}, {.key = "b", .length = kKiB / 2 * 3}, {.key = "c", .length = kKiB / 2}});
    EXPECT_EQ(state().totals().evicted_objects, 3u);
}

}  // namespace
}  // namespace mooncake::store
