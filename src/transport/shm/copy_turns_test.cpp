// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/copy_turns.h"

#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <thread>

namespace mooncake::shm {
namespace {

constexpr uint64_t kBytes = 512 << 10;
constexpr uint64_t kPlace = 7 * CopyTurns::kSharedBytes;

TEST(CopyTurns, PayWhereThreadsAreSlowerTogether) {
    CopyTurns::Place place;
    EXPECT_FALSE(CopyTurns::turns_pay(place));
    CopyTurns::learn(place, 1, kBytes, 25us);
    EXPECT_FALSE(CopyTurns::turns_pay(place));  // nobody knows yet what sharing costs
    CopyTurns::learn(place, 4, kBytes, 160us);  // 40 us each
    EXPECT_TRUE(CopyTurns::turns_pay(place));
}

TEST(CopyTurns, DoNotPayWhereThreadsDoNotMeet) {
    CopyTurns::Place place;
    CopyTurns::learn(place, 1, kBytes, 15us);
    CopyTurns::learn(place, 4, kBytes, 16us);
    EXPECT_FALSE(CopyTurns::turns_pay(place));
}

TEST(CopyTurns, ForgetWhatIsNoLongerTrue) {
    CopyTurns::Place place;
    CopyTurns::learn(place, 1, kBytes, 25us);
    CopyTurns::learn(place, 4, kBytes, 160us);
    for (int i = 0; i < 32; ++i) CopyTurns::learn(place, 4, kBytes, 30us);  // the pages have become huge ones
    EXPECT_FALSE(CopyTurns::turns_pay(place));
}

TEST(CopyTurns, BearOneCopyThatWasHeldUp) {
    CopyTurns::Place place;
    CopyTurns::learn(place, 1, kBytes, 15us);
    for (int i = 0; i < 8; ++i) CopyTurns::learn(place, 2, kBytes, 16us);
    CopyTurns::learn(place, 2, kBytes, 50ms);
    EXPECT_FALSE(CopyTurns::turns_pay(place));
}

/// Where turns have been seen to pay.
void make_them_pay(CopyTurns::Place& place) {
    CopyTurns::learn(place, 1, kBytes, 25us);
    CopyTurns::learn(place, 4, kBytes, 100ms);
}

TEST(CopyTurns, AreTakenOneAfterAnother) {
    CopyTurns turns;
    CopyTurns::Place& place = turns.place_of(kPlace);
    make_them_pay(place);
    { const auto trial = turns.take(kPlace, kBytes, kBytes); }
    std::atomic<bool> second{false};
    std::optional<CopyTurns::Turn> first(turns.take(kPlace, kBytes, kBytes));
    std::thread other([&] {
        const auto turn = turns.take(kPlace + 4096, kBytes, kBytes);
        second.store(true);
    });
    while (place.entered.load() < 3) std::this_thread::yield();
    first.reset();
    other.join();
    EXPECT_TRUE(second.load());
    EXPECT_EQ(place.inside.load(), 0U);
}

TEST(CopyTurns, NobodyWaitsForEver) {
    CopyTurns turns;
    make_them_pay(turns.place_of(kPlace));
    const auto held = turns.take(kPlace, kBytes, kBytes);
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(turns.take(kPlace + 4096, kBytes, kBytes));
    EXPECT_EQ(turns.place_of(kPlace).inside.load(), 1U);
}

TEST(CopyTurns, SmallCopiesAndThoseOverABorderTakeNone) {
    CopyTurns turns;
    EXPECT_TRUE(turns.take(kPlace, kBytes, kBytes));
    EXPECT_FALSE(turns.take(kPlace, 4096, 4096));
    EXPECT_FALSE(turns.take(kPlace + CopyTurns::kSharedBytes - 4096, kBytes, kBytes));
}

}  // namespace
}  // namespace mooncake::shm
