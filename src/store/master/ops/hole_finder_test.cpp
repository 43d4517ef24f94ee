// SPDX-License-Identifier: Apache-2.0
// Values of different lengths in a full pool: which of them go for one that needs a long range.
#include "store/master/ops/hole_finder.h"

#include <deque>

#include "store/master/testing/pool.h"

namespace mooncake::store {
namespace {

class Holes : public PoolTest {
protected:
    void SetUp() override { add_node(1); }
    /// Of those that `fill` wrote.
    int held(int from, int to, int step = 1) {
        int count = 0;
        for (int i = from; i < to; i += step) count += holds(std::to_string(i));
        return count;
    }
    void read(int from, int to, int step) {
        for (int i = from; i < to; i += step) get(std::to_string(i));
    }
    void probe(int from, int to, int step) {
        for (int i = from; i < to; i += step) exists(std::to_string(i));
    }
    /// So much is written elsewhere, in a place that is of no use to the tests, that all that is here is old.
    void grow_old() {
        add_node(2, 5 * kPool);
        const WriteConfig there{.hard_pin = true, .preferred_segments = {"node02:1"}};
        for (int i = 0; i < 4; ++i) ASSERT_EQ(put("pin" + std::to_string(i), kPool, there), StoreCode::kOk);
        ASSERT_EQ(put("pin", kPool - 8 * kKiB, there), StoreCode::kOk);
        for (int i = 0; i < 40; ++i) {
            ASSERT_EQ(put("elsewhere", 8 * kKiB, {.preferred_segments = {"node02:1"}}), StoreCode::kOk);
            ASSERT_EQ(remove_key("elsewhere"), StoreCode::kOk);
        }
        ASSERT_EQ(put("elsewhere", 8 * kKiB, there), StoreCode::kOk);
    }
};

TEST_F(Holes, AreMadeWhereAllIsColdNotWhereTheColdestLieAmongWhatWasJustRead) {
    ASSERT_EQ(fill(256), 256);
    grow_old();
    read(1, 192, 2);  // the coldest of all are the even ones beside these
    pass(11s);
    beat(node(1)), beat(node(2));
    ASSERT_EQ(put("large", 16 * kKiB), StoreCode::kOk);
    EXPECT_EQ(held(1, 192, 2), 96) << "what was read";
    EXPECT_EQ(held(0, 192, 2), 96) << "nor what would not have helped";
    EXPECT_EQ(held(192, 256), 0);
}

TEST_F(Holes, BreakNoSoftLeaseWhereThereIsAnotherPlace) {
    ASSERT_EQ(fill(256), 256);
    grow_old();
    probe(0, 192, 2);
    ASSERT_EQ(put("large", 16 * kKiB), StoreCode::kOk);
    EXPECT_EQ(held(0, 192, 2), 96);
    ASSERT_EQ(put("other", 16 * kKiB), StoreCode::kOk) << "in the place of the first";
    EXPECT_EQ(held(0, 192, 2), 96);
    EXPECT_FALSE(holds("large"));
}

TEST_F(Holes, BreakSoftLeasesBeforeAPutIsRefused) {
    ASSERT_EQ(fill(256), 256);
    probe(0, 256, 2);
    EXPECT_EQ(put("large", 16 * kKiB), StoreCode::kOk);
}

TEST_F(Holes, AreNotPaidForWithSmallValuesThatDoNotMakeThem) {
    for (int i = 0; i < 128; ++i) ASSERT_EQ(put(std::to_string(i), 256), StoreCode::kOk);
    ASSERT_EQ(put("large", kPool / 2), StoreCode::kOk);
    read(0, 128, 8);  // leases everywhere among the small ones
    ASSERT_EQ(put("larger", kPool / 2), StoreCode::kOk);
    EXPECT_FALSE(holds("large"));
    EXPECT_EQ(held(0, 128), 128);
}

TEST_F(Holes, OfSmallValuesAreLeftToSmallOnes) {
    for (int i = 0; i < 4; ++i) ASSERT_EQ(put(std::to_string(i), kPool / 8), StoreCode::kOk);
    for (int i = 4; i < 132; ++i) ASSERT_EQ(put(std::to_string(i), 256), StoreCode::kOk);
    // The large ones are older, but hardly.
    grow_old();
    for (int i = 132; i < 148; ++i) ASSERT_EQ(put(std::to_string(i), 256), StoreCode::kOk);
    EXPECT_EQ(held(0, 4), 4);
    EXPECT_EQ(held(4, 20), 0);
    ASSERT_EQ(put("large", kPool / 8), StoreCode::kOk);
    EXPECT_EQ(held(0, 4), 3);
    EXPECT_EQ(held(20, 148), 128);
}

TEST_F(Holes, GrowFromWhatIsFreeAlready) {
    ASSERT_EQ(fill(256), 256);
    for (int i = 64; i < 126; ++i) remove_key(std::to_string(i));
    ASSERT_EQ(put("large", 16 * kKiB), StoreCode::kOk);
    EXPECT_EQ(held(0, 256), 256 - 64) << "two neighbours of a hole that was nearly long enough";
}

TEST_F(Holes, TheOldestGoInTheEndThoughTheirMemoryIsOfNoUse) {
    for (int i = 0; i < 8; ++i) {
        ASSERT_EQ(put(std::to_string(i), 64), StoreCode::kOk);
        ASSERT_EQ(put("pin" + std::to_string(i), 64, {.hard_pin = true}), StoreCode::kOk);
    }
    for (int i = 0; i < 6; ++i) ASSERT_EQ(put("large" + std::to_string(i), kPool / 2), StoreCode::kOk);
    EXPECT_EQ(held(0, 8), 0);
}

TEST_F(Holes, AreFoundOnTheSegmentThatIsAskedFor) {
    ASSERT_EQ(fill(256), 256);
    const SegmentNumber second = add_node(2);
    for (int i = 0; i < 256; ++i) ASSERT_EQ(put("s" + std::to_string(i), 256), StoreCode::kOk);
    HoleFinder finder(state(), now_, 0);
    const HoleFinder::Hole hole = finder.find(TenantTable::kDefault, 4 * kKiB, {.only = second}, Sacrifice::kPlain);
    EXPECT_EQ(hole.segment, second);
    EXPECT_EQ(hole.victims.size(), 16u);
    for (const ObjectId victim : hole.victims) EXPECT_EQ(state().objects()[victim].replicas[0].segment, second);
}

/// Values of three lengths, with an equal share of the bytes each, in a pool in which the younger ones are read all the time. Nothing may
/// be refused, and what was put while the last quarter of the pool was written must be there, but for one in a thousand.
class MixedLengths : public PoolTest, public testing::WithParamInterface<uint64_t> {};

TEST_P(MixedLengths, NeitherRefuseEachOtherNorPushOutWhatIsYoung) {
    constexpr uint64_t kCapacity = 32 * 1024 * kKiB;
    use({});  // with rationed leases, as ever but in tests
    for (uint64_t n = 1; n <= 2; ++n) add_node(n, kCapacity / 2);
    Random random(GetParam());
    std::deque<std::pair<int, uint64_t>> recent;  // number, and bytes put until then
    uint64_t bytes = 0;
    int refused = 0, missed = 0, asked = 0;
    for (int number = 0; bytes < 4 * kCapacity; ++number) {
        const uint64_t dice = random.below(256 + 16 + 1);
        const uint64_t length = dice < 256 ? kKiB : dice < 272 ? 16 * kKiB : 256 * kKiB;
        refused += put(std::to_string(number), length) != StoreCode::kOk;
        bytes += length;
        recent.emplace_back(number, bytes);
        while (recent.front().second + kCapacity / 4 < bytes) recent.pop_front();
        if (number % 2 == 0) {
            ++asked;
            missed += get(std::to_string(recent[random.below(recent.size())].first)).code != StoreCode::kOk;
        }
        pass(std::chrono::microseconds(200 + length / 100));
        if (number % 1000 == 0) beat(node(1)), beat(node(2));
    }
    EXPECT_EQ(refused, 0);
    EXPECT_LE(missed, asked / 1000);
    EXPECT_GT(state().segments().used_bytes(), kCapacity * 95 / 100);
}

INSTANTIATE_TEST_SUITE_P(Seeds, MixedLengths, testing::Range<uint64_t>(1, 6));

}  // namespace
}  // namespace mooncake::store
