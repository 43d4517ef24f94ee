// SPDX-License-Identifier: Apache-2.0
#include "store/protocol/codes.h"

#include <gtest/gtest.h>

namespace mooncake::store {
namespace {

TEST(StoreCode, KeepsThePublicNumbers) {
    EXPECT_EQ(static_cast<int>(StoreCode::kNoAvailableHandle), -200);
    EXPECT_EQ(static_cast<int>(StoreCode::kInvalidParams), -600);
    EXPECT_EQ(static_cast<int>(StoreCode::kObjectNotFound), -704);
    EXPECT_EQ(static_cast<int>(StoreCode::kObjectReplicaBusy), -714);
    EXPECT_EQ(static_cast<int>(StoreCode::kTenantNotEmpty), -1702);
}

TEST(StoreCode, HasANameForEveryNumberOfTheTable) {
    int named = 0;
    for (int number = -2000; number <= 0; ++number) named += store_code_name(static_cast<StoreCode>(number)) != "UNKNOWN";
    EXPECT_EQ(named, 40);
    EXPECT_EQ(store_code_name(StoreCode::kObjectHasLease), "OBJECT_HAS_LEASE");
    EXPECT_EQ(store_code_name(static_cast<StoreCode>(1)), "UNKNOWN");
}

}  // namespace
}  // namespace mooncake::store
