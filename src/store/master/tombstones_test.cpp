// SPDX-License-Identifier: Apache-2.0
#include "store/master/tombstones.h"

#include <gtest/gtest.h>

namespace mooncake::store {
namespace {

TEST(Tombstones, RemembersTheLatest) {
    Tombstones tombstones;
    for (uint64_t key = 0; key <= Tombstones::kKeysMax; ++key) tombstones.leave(key, 10);
    EXPECT_EQ(tombstones.size(), Tombstones::kKeysMax);
    EXPECT_FALSE(tombstones.covers(1, 0, 9));
    EXPECT_TRUE(tombstones.covers(1, 1, 9));
    EXPECT_FALSE(tombstones.covers(1, 1, 10));
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

}  // namespace
}  // namespace mooncake::store
