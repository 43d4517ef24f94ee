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

/// A process that takes the place of one that is gone, with its memory.
class RestartedMember : public MemberTest {
protected:
    void restart(const Standing& stood, bool exact = true) {
        catalogue_.add_segment(spec());
        catalogue_.apply(EventUpdate{.planned = {planned(1, 0, "a"), planned(2, 128, "b")}, .filled = {filled(1), filled(2)}}, now());
        catalogue_.stream_ended(!stood.following);
        Member::Setup setup{.master = master_, .client = kClient, .listener = listener_, .holdings = catalogue_, .options = options()};
        setup.options.restarted = FormerLife{.standing = stood, .behind = {{{8, 8}, {3, 3}}}, .exact = exact};
        setup.options.life = {77};
        setup.clock = [this] { return now(); };
        setup.lease_clock = [this] { return BootTime(now().time_since_epoch()); };
        again_ = std::make_unique<Member>(std::move(setup));
        again_->beat();
        master_.settle();
        EXPECT_TRUE(again_->standing());
    }
    ~RestartedMember() override {
        if (again_) again_->leave();
    }
    std::unique_ptr<Member> again_;
};

TEST_F(RestartedMember, SaysWhatItsPredecessorHadHeard) {
    master_.missed = {{.sequence = 44, .planned = {planned(3, 256, "late")}, .filled = {filled(3)}}};
    restart({.heard = {1, 7}, .followed_epoch = 100, .whole_epoch = 100, .whole_update = 41, .last_update = 43, .following = true});
    EXPECT_EQ(master_.heard_update(), 41u);
    EXPECT_EQ(master_.remembered_update(), 43u + 1);
    EXPECT_EQ(master_.heard(), (HistoryPoint{1, 7}));
    EXPECT_EQ(master_.take_witnessed(), (std::vector<Behind>{{{8, 8}, {3, 3}}}));
    std::vector<std::string> keys;
    for (const Part& part : master_.take_parts()) {
        keys.insert(keys.end(), part.keys.begin(), part.keys.end());
        EXPECT_TRUE(part.exact) << "it was told everything";
    }
    EXPECT_THAT(keys, ::testing::UnorderedElementsAre("a", "b", "late"));
    // From here on it is one as any other.
    master_.missed.clear();
    master_.give_up(kClient);
    again_->beat();
    EXPECT_EQ(master_.remembered_update(), 0u);
}

TEST_F(RestartedMember, IsNotExactAfterTheMiddleOfABeginning) {
    restart({.followed_epoch = 100, .whole_epoch = 100, .whole_update = 41, .last_update = 43, .following = true}, /*exact=*/false);
    for (const Part& part : master_.take_parts()) EXPECT_FALSE(part.exact);
}

TEST_F(RestartedMember, ReportsNothingToAMasterThatCannotTellWhatWasMissed) {
    restart({.followed_epoch = 99, .whole_epoch = 99, .whole_update = 41, .last_update = 43, .following = true});
    EXPECT_EQ(master_.remembered_update(), 0u + 1);
    for (const Part& part : master_.take_parts()) EXPECT_THAT(part.keys, IsEmpty());
}

TEST_F(RestartedMember, ReportsEverythingAfterAMasterThatEndedBefore) {
    restart({.followed_epoch = 99, .whole_epoch = 99, .whole_update = 41, .last_update = 43, .following = false});
    std::vector<std::string> keys;
    for (const Part& part : master_.take_parts()) {
        keys.insert(keys.end(), part.keys.begin(), part.keys.end());
        EXPECT_TRUE(part.exact);
    }
    EXPECT_THAT(keys, ::testing::UnorderedElementsAre("a", "b"));
}

TEST_F(RestartedMember, GivesUpWhatNobodyCanVouchFor) {
    master_.missed_lost = true;
    restart({.followed_epoch = 100, .whole_epoch = 100, .whole_update = 41, .last_update = 43, .following = true});
    for (const Part& part : master_.take_parts()) EXPECT_THAT(part.keys, IsEmpty());
}

}  // namespace mooncake::store
