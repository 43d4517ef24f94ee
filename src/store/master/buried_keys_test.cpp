// SPDX-License-Identifier: Apache-2.0
#include "store/master/buried_keys.h"

#include <gtest/gtest.h>

namespace mooncake::store {
namespace {

TEST(BuriedKeys, RemembersTheLatest) {
    BuriedKeys buried;
    for (uint64_t key = 0; key <= BuriedKeys::kKeysMax; ++key) buried.bury(key, 10);
    EXPECT_EQ(buried.size(), BuriedKeys::kKeysMax);
    EXPECT_FALSE(buried.buried(1, 0, 9));
    EXPECT_TRUE(buried.buried(1, 1, 9));
    EXPECT_FALSE(buried.buried(1, 1, 10));
}

TEST(BuriedKeys, AKeyBuriedAgainIsAmongTheLatestAgain) {
    BuriedKeys buried;
    for (uint64_t key = 0; key < BuriedKeys::kKeysMax; ++key) buried.bury(key, 10);
    buried.bury(0, 20);
    buried.bury(BuriedKeys::kKeysMax, 20);
    buried.bury(BuriedKeys::kKeysMax + 1, 20);
    EXPECT_TRUE(buried.buried(1, 0, 19));
    EXPECT_FALSE(buried.buried(1, 1, 9));
    EXPECT_EQ(buried.size(), BuriedKeys::kKeysMax);
}

}  // namespace
}  // namespace mooncake::store
