// SPDX-License-Identifier: Apache-2.0
#include "store/master/tombstones.h"

#include <gtest/gtest.h>

#include <new>
#include <vector>

#include "base/testing/little_memory.h"
#include "store/master/matched_keys.h"

namespace mooncake::store {
namespace {

TEST(Tombstones, RemembersTheLatest) {
    Tombstones tombstones;
    for (uint64_t key = 0; key <= Tombstones::kKeysMax; ++key) tombstones.leave(key, 10);
    EXPECT_EQ(tombstones.size(), Tombstones::kKeysMax);
    EXPECT_FALSE(tombstones.covers(1, 0, 9));
    EXPECT_TRUE(tombstones.forgot(9)) << "so that what it covered is not taken for alive";
    EXPECT_FALSE(tombstones.forgot(10));
    EXPECT_TRUE(tombstones.covers(1, 1, 9));
    EXPECT_FALSE(tombstones.covers(1, 1, 10));
}

TEST(Tombstones, OfTooManyPatternsTheOldestStandForEverything) {
    Tombstones tombstones;
    const auto never = [](std::string_view) { return false; };
    const auto always = [](std::string_view) { return true; };
    tombstones.leave_for_matching(1, never, 10);
    for (uint64_t i = 0; i < Tombstones::kPatternsMax - 1; ++i) tombstones.leave_for_matching(2, always, 20);
    EXPECT_TRUE(tombstones.covers_matching(2, "k", 19));
    EXPECT_FALSE(tombstones.covers_matching(2, "k", 20));
    EXPECT_FALSE(tombstones.covers_matching(1, "k", 9));
    EXPECT_FALSE(tombstones.covers(1, 5, 9));
    tombstones.leave_for_matching(0, never, 30);
    EXPECT_TRUE(tombstones.covers(1, 5, 9));
    EXPECT_FALSE(tombstones.covers(1, 5, 10));
    EXPECT_FALSE(tombstones.covers(2, 5, 9));
}

TEST(Tombstones, OfPatternsThatCostTooMuchTheOldestStandForEverything) {
    Tombstones tombstones;
    const auto never = [](std::string_view) { return false; };
    tombstones.leave_for_matching(1, never, 10, Tombstones::kPatternsCostMax / 2);
    tombstones.leave_for_matching(2, never, 20, Tombstones::kPatternsCostMax / 2);
    EXPECT_FALSE(tombstones.covers(1, 5, 9));
    tombstones.leave_for_matching(3, never, 30, 1);
    EXPECT_TRUE(tombstones.covers(1, 5, 9));
    EXPECT_FALSE(tombstones.covers(2, 5, 19));
    EXPECT_EQ(tombstones.patterns().size(), 2u);
}

TEST(Tombstones, TryNoPatternAgainOfWhichTheOutcomeIsKnown) {
    Tombstones tombstones;
    int tried = 0;
    const auto always = [&](std::string_view) { return ++tried > 0; };
    for (int i = 0; i < 3; ++i) tombstones.leave_for_matching(0, always, 10);
    const HeldObject object{.key = "k"};
    const MatchedKeys matched(tombstones.patterns(), {&object, 1});
    EXPECT_EQ(tried, 3);
    EXPECT_TRUE(tombstones.covers_matching(1, "k", 9, matched.of(0)));
    EXPECT_FALSE(tombstones.covers_matching(1, "k", 10, matched.of(0)));
    EXPECT_EQ(tried, 3);
    const Tombstones::Matched none{.first = matched.of(0).first, .count = 3, .mask = 0};
    EXPECT_FALSE(tombstones.covers_matching(1, "k", 9, none));
    tombstones.leave_for_matching(0, always, 20);
    EXPECT_TRUE(tombstones.covers_matching(1, "k", 9, none)) << "this one came later";
    EXPECT_EQ(tried, 4);
    for (size_t i = 0; i < Tombstones::kPatternsMax; ++i) tombstones.leave_for_matching(2, always, 30);
    EXPECT_FALSE(tombstones.covers_matching(1, "k", 9, matched.of(0))) << "these stand for everything now";
    EXPECT_TRUE(tombstones.covers(1, 5, 9));
}

TEST(Tombstones, OfTooManyTenantsTheOldestStandForAll) {
    Tombstones tombstones;
    for (uint64_t tenant = 1; tenant <= Tombstones::kTenantsMax; ++tenant) tombstones.leave_for_all(tenant, 10 + tenant);
    EXPECT_FALSE(tombstones.covers(5000, 5, 10));
    tombstones.leave_for_all(4000, 3000);
    EXPECT_TRUE(tombstones.covers(5000, 5, 10));
    EXPECT_FALSE(tombstones.covers(5000, 5, 11));
    EXPECT_TRUE(tombstones.covers(4000, 5, 2999));
    EXPECT_TRUE(tombstones.covers(2, 5, 11));
}

TEST(Tombstones, AWriteThatARemovalOfManyKeysOvertakesCountsFromItsEnd) {
    Tombstones tombstones;
    tombstones.leave_for_all(1, 20);
    tombstones.ended(15, 20);
    tombstones.ended(25, 26);  // began later: nothing to remember
    EXPECT_FALSE(tombstones.covers(1, 5, 15));
    EXPECT_TRUE(tombstones.covers(1, 5, 14));
    const auto always = [](std::string_view) { return true; };
    tombstones.leave_for_matching(1, always, 21);
    EXPECT_TRUE(tombstones.covers_matching(1, "k", 15)) << "this one came after its end";
    EXPECT_FALSE(tombstones.covers_matching(1, "k", 25));
    tombstones.leave(5, 16);
    EXPECT_TRUE(tombstones.covers(1, 5, 15)) << "its key alone was written again";
}

TEST(Tombstones, AKeyRemovedAgainIsAmongTheLatestAgain) {
    Tombstones tombstones;
    for (uint64_t key = 0; key < Tombstones::kKeysMax; ++key) tombstones.leave(key, 10);
    tombstones.leave(0, 20);
    tombstones.leave(Tombstones::kKeysMax, 20);
    tombstones.leave(Tombstones::kKeysMax + 1, 20);
    EXPECT_TRUE(tombstones.covers(1, 0, 19));
    EXPECT_FALSE(tombstones.covers(1, 1, 9));
    EXPECT_EQ(tombstones.size(), Tombstones::kKeysMax);
}

TEST(Tombstones, AreFoundHoweverManyHaveBeenForgotten) {
    Tombstones tombstones;
    std::vector<uint64_t> keys(Tombstones::kKeysMax * 2);
    for (size_t i = 0; i < keys.size(); ++i) keys[i] = (i * 2654435761) << 32;  // all different, but for their low bits
    for (const uint64_t key : keys) tombstones.leave(key, 10);
    size_t covered = 0;
    for (size_t i = 0; i < keys.size(); ++i) covered += tombstones.covers(1, keys[i], 9) == (i >= keys.size() - Tombstones::kKeysMax);
    EXPECT_EQ(covered, keys.size());
}

/// Takes all memory there is, and leaves tombstones then. 0: there was enough for all of them.
int leave_tombstones_without_memory() {
    Tombstones tombstones;
    void* taken = nullptr;  // each block begins with the one before
    for (size_t bytes = 1 << 20; bytes >= sizeof taken; bytes /= 2) {
        try {
            for (;;) taken = new (::operator new(bytes)) void*(taken);
        } catch (const std::bad_alloc&) {}
    }
    for (uint64_t key = 0; key < 2 * Tombstones::kKeysMax; ++key) tombstones.leave(key, 10);
    return tombstones.size() == Tombstones::kKeysMax ? 0 : 2;
}

TEST(Tombstones, NeedNoMemoryThatTheyDidNotHaveFromTheBeginning) {
    if (mooncake::testing::kCannotLimitMemory) GTEST_SKIP() << "not with this sanitizer";
    EXPECT_EQ(mooncake::testing::in_a_process_with(64 << 20, leave_tombstones_without_memory), 0);
}

}  // namespace
}  // namespace mooncake::store
