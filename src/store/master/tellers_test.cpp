// SPDX-License-Identifier: Apache-2.0
#include "store/master/tellers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mooncake::store {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr ClientId kOne{2, 1}, kTwo{2, 2}, kThree{2, 3};

TEST(Tellers, AValueIsWithdrawnWithTheLastWhoToldOfIt) {
    Tellers tellers;
    tellers.copied(7, 70, {kOne, kTwo});
    tellers.copied(5, 50, {kOne});
    tellers.copied(5, 51, {kThree});  // copied once more, from a copy or not
    EXPECT_THAT(tellers.withdraw(std::vector{kThree}), IsEmpty());
    EXPECT_THAT(tellers.withdraw(std::vector{kOne}), ElementsAre(Pair(5, 50)));
    EXPECT_TRUE(tellers.withdrawn(5));
    EXPECT_FALSE(tellers.withdrawn(7));
    EXPECT_THAT(tellers.withdraw(std::vector{kOne, kTwo}), ElementsAre(Pair(7, 70))) << "each once";
}

TEST(Tellers, WhoReportsByItselfTellsToo) {
    Tellers tellers;
    tellers.reported(5, 50, kOne, true);
    EXPECT_FALSE(tellers.knows(5)) << "not copied";
    tellers.copied(5, 50, {kOne});
    tellers.reported(5, 51, kTwo, true);
    tellers.reported(5, 52, kThree, false);
    EXPECT_THAT(tellers.withdraw(std::vector{kOne}), IsEmpty());
    EXPECT_THAT(tellers.withdraw(std::vector{kTwo}), ElementsAre(Pair(5, 52))) << "where it is now";
    tellers.reported(5, 53, kThree, true);
    EXPECT_FALSE(tellers.withdrawn(5));
}

TEST(Tellers, SaysThatItDoesNotRememberMore) {
    Tellers tellers;
    EXPECT_TRUE(tellers.empty());
    for (uint64_t i = 1; i <= Tellers::kValuesMax; ++i) tellers.copied(i, 1, {kOne});
    EXPECT_FALSE(tellers.forgot());
    tellers.copied(Tellers::kValuesMax + 1, 1, {kOne});
    EXPECT_TRUE(tellers.forgot());
    EXPECT_FALSE(tellers.knows(Tellers::kValuesMax + 1));
    for (uint64_t i = 1; i <= Tellers::kValuesMax; ++i) tellers.forget(i);
    EXPECT_FALSE(tellers.empty()) << "some are not known";
}

}  // namespace
}  // namespace mooncake::store
