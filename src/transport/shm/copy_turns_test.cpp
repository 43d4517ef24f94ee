// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/copy_turns.h"

#include <gtest/gtest.h>

#include <optional>
#include <thread>

namespace mooncake::shm {
namespace {

constexpr uint64_t kBytes = 512 << 10;
constexpr uint64_t kPlace = 7 * CopyTurns::kSharedBytes;

/// A round of copies that begin as far apart as given: those of the first trial, those of the second. Returns how many of the others wait.
uint32_t run_round(CopyTurns::Place& place, Duration in_turns, Duration at_once) {
    uint32_t waiting = 0;
    Time now{};
    for (uint32_t i = 0; i < CopyTurns::kRound; ++i) {
        const bool waits = place.begin(place.entered.fetch_add(1), now);
        if (i < CopyTurns::kTrial) EXPECT_TRUE(waits) << i;
        else if (i < 2 * CopyTurns::kTrial) EXPECT_FALSE(waits) << i;
        else waiting += waits ? 1 : 0;
        now += i < CopyTurns::kTrial ? in_turns : at_once;
    }
    return waiting;
}

TEST(CopyTurns, AreTakenWhereThreadsAreSlowerTogether) {
    CopyTurns::Place place;
    EXPECT_EQ(run_round(place, 23us, 45us), CopyTurns::kRound - 2 * CopyTurns::kTrial);
}

TEST(CopyTurns, AreNotTakenWhereThreadsDoNotMeet) {
    CopyTurns::Place place;
    EXPECT_EQ(run_round(place, 8us, 4us), 0U);
    EXPECT_EQ(run_round(place, 25us, 25us), 0U);  // one thread alone
    EXPECT_EQ(run_round(place, 25us, 27us), 0U);  // may be an accident
}

TEST(CopyTurns, AreJudgedAnewInEveryRound) {
    CopyTurns::Place place;
    EXPECT_GT(run_round(place, 23us, 45us), 0U);
    EXPECT_EQ(run_round(place, 8us, 4us), 0U);  // the pages have become huge ones
    EXPECT_GT(run_round(place, 23us, 45us), 0U);
}

TEST(CopyTurns, LetTwoInAtATime) {
    CopyTurns turns;  // of which the first ones are a trial of turns
    CopyTurns::Place& place = turns.place_of(kPlace);
    std::optional<CopyTurns::Turn> first(turns.take(kPlace, kBytes, kBytes));
    const auto second = turns.take(kPlace + 4096, kBytes, kBytes);
    std::thread third([&] { EXPECT_TRUE(turns.take(kPlace + 8192, kBytes, kBytes)); });
    while (place.entered.load() < 3) std::this_thread::yield();
    first.reset();
    third.join();
    EXPECT_EQ(place.inside.load(), 1U);
}

TEST(CopyTurns, LetNobodyWaitForEver) {
    CopyTurns turns;
    const auto held = turns.take(kPlace, kBytes, kBytes), held_too = turns.take(kPlace, kBytes, kBytes);
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(turns.take(kPlace + 4096, kBytes, kBytes));
    EXPECT_EQ(turns.place_of(kPlace).inside.load(), 2U);
}

TEST(CopyTurns, AreNotForSmallCopiesAndThoseOverABorder) {
    CopyTurns turns;
    EXPECT_TRUE(turns.take(kPlace, kBytes, kBytes));
    EXPECT_FALSE(turns.take(kPlace, 4096, 4096));
    EXPECT_FALSE(turns.take(kPlace + CopyTurns::kSharedBytes - 4096, kBytes, kBytes));
}

}  // namespace
}  // namespace mooncake::shm
