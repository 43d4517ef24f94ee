// SPDX-License-Identifier: Apache-2.0
#include "store/master/hold_ledger.h"

#include <gtest/gtest.h>

#include "store/master/testing/pool.h"

namespace mooncake::store {
namespace {

constexpr Time kStart = Time{} + 1h;

TEST(HoldLedger, CountsWhatHasNotEnded) {
    HoldLedger ledger(10s);
    ledger.move({}, kStart + 5s, 100);
    ledger.move({}, kStart + 10s, 20);
    EXPECT_EQ(ledger.held(kStart), 120u);
    EXPECT_EQ(ledger.held(kStart + 6s), 20u);
    EXPECT_EQ(ledger.held(kStart + 11s), 0u);
}

TEST(HoldLedger, CountsAProlongedHoldOnce) {
    HoldLedger ledger(10s);
    ledger.move({}, kStart + 5s, 100);
    ledger.move(kStart + 5s, kStart + 8s, 100);
    EXPECT_EQ(ledger.held(kStart), 100u);
    EXPECT_EQ(ledger.held(kStart + 6s), 100u);
}

TEST(HoldLedger, ForgetsWhatWentAndWhatIsLongOver) {
    HoldLedger ledger(10s);
    ledger.move({}, kStart + 5s, 100);
    ledger.remove(kStart + 5s, 100);
    EXPECT_EQ(ledger.held(kStart), 0u);
    ledger.move({}, kStart + 5s, 100);
    ledger.move(kStart + 5s, kStart + 2h, 100);  // its bucket serves another time by now
    ledger.remove(kStart + 5s, 100);
    EXPECT_EQ(ledger.held(kStart + 1h), 100u);
}

class Rationing : public PoolTest {
protected:
    Rationing() {
        use({.held_share = 0.25});
        add_node(1);
        attach(kClient);
    }
    Duration lease(int key) { return get_all({std::to_string(key)}).lease; }
    Duration lease_softly(int key) {
        auto t = transaction();
        const std::string name = std::to_string(key);
        const std::string_view view = name;
        return exist(t, {.keys = {&view, 1}}, now_).soft_lease;
    }
};

TEST_F(Rationing, LeasesSoftlyForTheFullTimeWhileThereIsRoom) {
    fill(kPool / 16, 6);
    for (int i = 0; i < 6; ++i) EXPECT_EQ(lease_softly(i), 10s);
}

TEST_F(Rationing, LeasesSoftlyForLessTheMoreIsLeased) {
    ASSERT_EQ(fill(kPool / 16), 16);
    EXPECT_EQ(lease_softly(0), 10s);
    EXPECT_EQ(lease_softly(1), 7500ms);
    EXPECT_EQ(lease_softly(2), 5s);
    EXPECT_EQ(lease_softly(3), 2500ms);
    EXPECT_EQ(lease_softly(4), 200ms);
}

TEST_F(Rationing, LeasesLessTheMoreIsLeasedEvenWhileThereIsRoom) {
    fill(kPool / 16, 6);
    EXPECT_EQ(lease(0), 10s);
    EXPECT_EQ(lease(1), 7500ms);
    EXPECT_EQ(lease(2), 5s);
    EXPECT_EQ(lease(3), 2500ms);
    EXPECT_EQ(lease(4), 50ms) << "enough to read";
}

TEST_F(Rationing, WhatIsReadIsLeasedSoftlyForLongerThanItIsLeased) {
    fill(kPool / 16, 6);
    for (int i = 0; i < 6; ++i) lease(i);
    pass(9s);
    EXPECT_EQ(remove_key("5"), StoreCode::kObjectHasLease);
}

TEST_F(Rationing, GivesTheFullTimeAgainWhenHoldsAreOver) {
    fill(kPool / 16);
    for (int i = 0; i < 8; ++i) lease(i);
    pass(11s);
    EXPECT_EQ(lease(9), 10s);
}

TEST_F(Rationing, MemoryOfWhatIsRemovedByForceIsSoonOfUseAgain) {
    fill(kPool / 16, 12);
    for (int i = 0; i < 12; ++i) lease(i);
    for (int i = 0; i < 12; ++i) EXPECT_EQ(remove_key(std::to_string(i), true), StoreCode::kOk);
    pass(50ms);
    for (int i = 0; i < 12; ++i) ASSERT_EQ(put("new" + std::to_string(i), kPool / 16), StoreCode::kOk);
    EXPECT_TRUE(holds("new0")) << "none had to go for another";
}

TEST_F(Rationing, WhatIsInQuarantineStillCountsAsLeased) {
    fill(kPool / 16, 4);
    for (int i = 0; i < 4; ++i) lease(i);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(remove_key(std::to_string(i), true), StoreCode::kOk);
    put("a");
    EXPECT_EQ(get_all({"a"}).lease, 50ms);
}

TEST_F(Rationing, LetsPutsGoOnWhileEverythingIsReadAllTheTime) {
    fill(kPool / 16);
    for (int i = 16; i < 400; ++i) {
        for (int back = 1; back <= 16; ++back) get(std::to_string(i - back));
        pass(200ms);
        beat(kClient);
        beat(node(1));
        ASSERT_EQ(put(std::to_string(i), kPool / 16), StoreCode::kOk) << i;
    }
}

}  // namespace
}  // namespace mooncake::store
