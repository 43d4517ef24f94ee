// SPDX-License-Identifier: Apache-2.0
#include "store/client/key_turns.h"

#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <thread>

namespace mooncake::store {

namespace {

TEST(KeyTurns, WhoComesLaterWaitsForAllOfItsKeys) {
    KeyTurns turns;
    std::optional<KeyTurns::Turn> first(turns.take({"a", "b", "a"}, Deadline::never()));
    EXPECT_EQ(first->size(), 2u);
    std::atomic<bool> given_back = false;
    std::jthread other([&] {
        const auto mine = turns.take({"c", "b"}, Deadline::never());
        EXPECT_EQ(mine.size(), 2u);
        EXPECT_TRUE(given_back.load());
    });
    EXPECT_EQ(turns.take({"d"}, Deadline::never()).size(), 1u) << "others have nothing to do with it";
    given_back = true;
    first.reset();
}

TEST(KeyTurns, NobodyWaitsForever) {
    KeyTurns turns;
    const auto first = turns.take({"a"}, Deadline::never());
    const auto second = turns.take({"a", "b"}, Deadline::after(1ms));
    EXPECT_EQ(second.size(), 1u) << "what is free it has";
}

}  // namespace

}  // namespace mooncake::store
