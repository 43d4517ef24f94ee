// SPDX-License-Identifier: Apache-2.0
// What a member has not heard of the master that it comes back to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "store/member/testing/member_fixture.h"

namespace mooncake::store {

using namespace store::testing;
using ::testing::IsEmpty;
using Part = FakeMaster::Part;

TEST_F(MemberTest, WhatItMissedOfTheMasterThatGaveItUpIsPartOfItsReport) {
    join_with_values();
    master_.tell({.sequence = 41, .planned = {planned(11, 1024, "heard")}, .filled = {filled(11)}});
    master_.missed = {{.sequence = 42, .planned = {planned(12, 2048, "late")}, .filled = {filled(12)}},
                      {.sequence = 43, .dropped = {{.segment = kSegment, .generation = 11}}}};
    master_.give_up(kClient);
    beat();
    EXPECT_EQ(master_.heard_update(), 41u);
    std::vector<std::string> keys;
    for (const Part& part : master_.take_parts()) keys.insert(keys.end(), part.keys.begin(), part.keys.end());
    EXPECT_THAT(keys, ::testing::Contains("late"));
    EXPECT_THAT(keys, ::testing::Not(::testing::Contains("heard"))) << "its place belongs to another";
}

TEST_F(MemberTest, WhatNobodyKnowsThatItMissedCostsItAllItHolds) {
    join_with_values();
    master_.missed_lost = true;
    master_.give_up(kClient);
    beat();
    EXPECT_TRUE(member_.standing());
    for (const Part& part : master_.take_parts()) EXPECT_THAT(part.keys, IsEmpty());
}

TEST_F(MemberTest, ThatIsNotForgottenWhenTheNextStreamBreaksAtItsStart) {
    join_with_values();
    master_.missed_lost = true;
    master_.streams_complete = false;
    master_.streams_break = true;
    master_.give_up(kClient);
    beat();
    master_.missed_lost = false;  // the master has begun to count anew
    master_.take_parts();
    beat();
    for (const Part& part : master_.take_parts()) EXPECT_THAT(part.keys, IsEmpty());
    master_.streams_complete = true;
    master_.streams_break = false;
    beat();
    EXPECT_TRUE(member_.standing());
    for (const Part& part : master_.take_parts()) EXPECT_THAT(part.keys, IsEmpty());
}

TEST_F(MemberTest, OnlyACompleteStreamMovesOnWhatItHasHeard) {
    join_with_values();
    master_.tell({.sequence = 41});
    master_.streams_complete = false;
    master_.end_streams(Error(Code::kUnavailable, "connection lost", ECONNRESET));
    master_.settle();
    beat();
    beat();
    ASSERT_EQ(master_.streams(), 1u);
    master_.tell({.sequence = 50});
    master_.streams_complete = true;
    master_.give_up(kClient);
    beat();
    EXPECT_EQ(master_.heard_update(), 41u);
}

TEST_F(MemberTest, AnotherMasterIsNotToldHowMuchItHeardOfTheLast) {
    join_with_values();
    master_.tell({.sequence = 41});
    master_.die();
    master_.settle();
    master_.come_back(101);
    beat();
    EXPECT_EQ(member_.epoch(), 101U);
    EXPECT_EQ(master_.heard_update(), 0u);
}

TEST_F(MemberTest, AcknowledgesAgainWithEveryHeartbeat) {
    join_with_values();
    master_.tell({.sequence = 41, .acknowledge = true});
    master_.take_log();  // that one may have been lost
    beat();
    EXPECT_EQ(master_.count("acknowledge 41"), 1u);
}

}  // namespace mooncake::store
