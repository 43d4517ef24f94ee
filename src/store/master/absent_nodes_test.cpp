// SPDX-License-Identifier: Apache-2.0
#include "store/master/absent_nodes.h"

#include <gtest/gtest.h>

namespace mooncake::store {
namespace {

constexpr SegmentId kOne{3, 1}, kTwo{3, 2};
constexpr Time kBegin{100s};

/// So much after its first write that nobody of an earlier life is waited for.
AbsentNodes long_after() {
    AbsentNodes absent;
    EXPECT_TRUE(absent.watch(kBegin - AbsentNodes::kReturnWindow));
    EXPECT_FALSE(absent.watch(kBegin));
    return absent;
}

TEST(AbsentNodes, WritesAreWatchedWhileASegmentMayReturn) {
    AbsentNodes absent = long_after();
    absent.left(kOne, kBegin);
    EXPECT_TRUE(absent.watch(kBegin + 1s));
    absent.left(kTwo, kBegin + 2s);
    absent.back(kTwo);
    EXPECT_TRUE(absent.watch(kBegin + 3s));
    absent.back(kOne);
    EXPECT_FALSE(absent.watch(kBegin + 4s));
}

TEST(AbsentNodes, ASegmentIsBelievedUntilAWriteWasNotWatched) {
    AbsentNodes absent = long_after();
    absent.left(kOne, kBegin);
    EXPECT_TRUE(absent.watch(kBegin + AbsentNodes::kReturnWindow - 1ms));
    EXPECT_TRUE(absent.contains(kOne)) << "however long it was away";
    EXPECT_FALSE(absent.watch(kBegin + AbsentNodes::kReturnWindow));
    EXPECT_FALSE(absent.contains(kOne));
}

TEST(AbsentNodes, WhoeverLeavesLaterIsWatchedForTheOthersToo) {
    AbsentNodes absent = long_after();
    absent.left(kOne, kBegin);
    absent.left(kTwo, kBegin + 9min);
    EXPECT_TRUE(absent.watch(kBegin + 18min));
    EXPECT_TRUE(absent.contains(kOne));
}

TEST(AbsentNodes, OneThatLeavesAgainBeforeItHasToldAnythingIsAwayAsBefore) {
    AbsentNodes absent = long_after();
    absent.left(kOne, kBegin);
    absent.still_away(kOne, kBegin + 9min);
    absent.still_away(kTwo, kBegin + 9min);
    EXPECT_TRUE(absent.contains(kOne));
    EXPECT_FALSE(absent.contains(kTwo)) << "it was never known";
    EXPECT_TRUE(absent.watch(kBegin + 18min));
}

TEST(AbsentNodes, EarlierLivesAreWaitedForFromTheFirstWriteOn) {
    AbsentNodes absent;
    absent.hear_of_earlier_life();
    EXPECT_TRUE(absent.watch(kBegin));
    for (uint64_t i = 0; i <= AbsentNodes::kUnheardMax; ++i) absent.watch(kBegin + 1s);
    EXPECT_TRUE(absent.watch(kBegin + AbsentNodes::kReturnWindow - 1ms));
    EXPECT_TRUE(absent.believes_earlier_lives());
    EXPECT_FALSE(absent.watch(kBegin + AbsentNodes::kReturnWindow));
    EXPECT_FALSE(absent.believes_earlier_lives());
}

TEST(AbsentNodes, IfNobodyTellsOfAnEarlierLifeOnlySomeWritesAreWatched) {
    AbsentNodes absent;
    for (uint64_t i = 0; i < AbsentNodes::kUnheardMax; ++i) ASSERT_TRUE(absent.watch(kBegin));
    EXPECT_TRUE(absent.believes_earlier_lives());
    EXPECT_FALSE(absent.watch(kBegin));
    EXPECT_FALSE(absent.believes_earlier_lives());
}

TEST(AbsentNodes, RemembersTheLatest) {
    AbsentNodes absent;
    for (uint64_t i = 0; i <= AbsentNodes::kSegmentsMax; ++i) absent.left({3, i}, kBegin);
    EXPECT_EQ(absent.size(), AbsentNodes::kSegmentsMax);
    EXPECT_FALSE(absent.contains({3, 0})) << "so that it is not believed";
    EXPECT_TRUE(absent.contains({3, 1}));
}

}  // namespace
}  // namespace mooncake::store
