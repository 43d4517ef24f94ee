// SPDX-License-Identifier: Apache-2.0
#include "store/member/member.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>
#include <thread>

#include "store/member/testing/member_fixture.h"

namespace mooncake::store {

namespace {

using namespace store::testing;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using Mood = FakeMaster::Mood;
using Part = FakeMaster::Part;

}  // namespace

TEST_F(MemberTest, MakesItselfKnownAndFollows) {
    beat();
    EXPECT_TRUE(member_.standing());
    EXPECT_THAT(master_.take_log(), ElementsAre("ping", "remount", "ping", "follow", "acknowledge 1"));
    EXPECT_THAT(listener_.take(), ElementsAre("all changed", "found 100"));
    EXPECT_EQ(member_.epoch(), 100U);
    EXPECT_EQ(next_ - now(), 1s);
}

TEST_F(MemberTest, SaysWhyItIsNoMember) {
    EXPECT_EQ(member_.standing().error().code(), Code::kUnavailable);
    master_.set_mood(Mood::kGone);
    beat();
    EXPECT_EQ(member_.standing().error().code(), Code::kUnavailable);
    EXPECT_THAT(member_.standing().error().message(), ::testing::HasSubstr("not a member"));
    EXPECT_EQ(member_.epoch(), 0U);
    EXPECT_EQ(next_ - now(), 100ms);
    EXPECT_THAT(listener_.take(), IsEmpty());
}

TEST_F(MemberTest, SendsHeartbeatsAtAFixedRate) {
    join();
    const Time began = now();
    master_.in_heartbeat = [this] { advance(300ms); };
    for (int i = 1; i <= 5; ++i) beat();
    EXPECT_EQ(now() - began, 5s + 300ms) << "the time a heartbeat takes is not added to the interval";
}

TEST_F(MemberTest, SendsHeartbeatsMoreOftenWhileItLends) {
    join();
    beat();
    EXPECT_EQ(next_ - now(), 1s);
    ASSERT_EQ(*member_.mount(spec(), Deadline::after(20s)), StoreCode::kOk);
    beat();
    EXPECT_EQ(next_ - now(), 300ms);
    ASSERT_EQ(*member_.unmount(kSegment, 0s, Deadline::after(20s)), StoreCode::kOk);
    beat();
    EXPECT_EQ(next_ - now(), 1s);
}

TEST_F(MemberTest, HandsOnWhatTheEventStreamSays) {
    join_with_values();
    EventUpdate update{.sequence = 7, .acknowledge = true, .changed = {{"t", "k"}, {"t", "l"}}};
    update.orders.push_back({.key = "k"});
    master_.tell(update);
    master_.tell({.sequence = 8, .all_changed = true});
    EXPECT_THAT(listener_.take(), ElementsAre("changed 2", "copy k", "all changed"));
    EXPECT_THAT(master_.take_log(), ElementsAre("acknowledge 7"));
    EXPECT_EQ(catalogue_.objects(), 3U);
}

TEST_F(MemberTest, TellsANewMasterEverythingExactlyWhenTheOldOneEnded) {
    join_with_values();
    master_.die();
    master_.settle();
    EXPECT_EQ(wakes_, 1) << "the end of the stream is a reason to ask at once";
    beat();
    beat();
    EXPECT_THAT(listener_.take(), IsEmpty()) << "what it granted and planned holds: nobody else can have changed it";
    EXPECT_EQ(member_.epoch(), 100U);
    master_.come_back(101);
    beat();
    EXPECT_THAT(listener_.take(), ElementsAre("lost", "all changed", "found 101"));
    const std::vector<Part> parts = master_.take_parts();
    ASSERT_EQ(parts.size(), 3U);  // of at most two entries, and the one that opens the segment
    for (const Part& part : parts) EXPECT_TRUE(part.exact);
    EXPECT_TRUE(parts[0].more && parts[1].more && !parts[2].more);
    EXPECT_EQ(parts[0].writes + parts[1].writes, 1U);
    EXPECT_EQ(parts[0].keys.size() + parts[1].keys.size(), 3U);
    EXPECT_EQ(master_.streams(), 1U);
    EXPECT_EQ(member_.epoch(), 101U);
}

TEST_F(MemberTest, HearsTheLastEventsOfAMasterThatHasBeenReplaced) {
    join_with_values();
    std::jthread old_master;
    listener_.in_lost = [&] {
        EXPECT_THAT(master_.take_parts(), IsEmpty()) << "nothing is reported while writes go on";
        old_master = std::jthread([this] {
            for (uint64_t i = 10; i < 13; ++i) master_.tell({.planned = {planned(i, i * 128, "late")}, .filled = {filled(i)}});
            EventUpdate order;
            order.orders.push_back({.key = "void"});
            master_.tell(order);
            master_.end_streams(Error(Code::kUnavailable, "peer closed the connection"));
        });
        old_master.join();
    };
    master_.come_back(101);  // answers at the same address while the old stream is still being read
    beat();
    EXPECT_THAT(reported_keys(), UnorderedElementsAre("a", "b", "c", "late", "late", "late"));
    for (const std::string& line : listener_.take()) EXPECT_NE(line, "copy void") << "orders of a lost master";
}

TEST_F(MemberTest, AnEventStreamThatNeverEndsIsGivenUpAndThenNothingIsExact) {
    join_with_values();
    master_.come_back(101);  // the old connection just stays, as that to a host that was switched off
    beat();
    const std::vector<Part> parts = master_.take_parts();
    ASSERT_EQ(parts.size(), 3U);
    for (const Part& part : parts) EXPECT_FALSE(part.exact);
    EXPECT_EQ(master_.streams(), 1U);
}

TEST_F(MemberTest, AResetConnectionIsNotAnOrderlyEnd) {
    join_with_values();
    master_.end_streams(Error(Code::kUnavailable, "connection lost", ECONNRESET));
    master_.settle();
    master_.come_back(101);
    beat();
    const std::vector<Part> parts = master_.take_parts();
    for (const Part& part : parts) EXPECT_FALSE(part.exact);
    EXPECT_EQ(parts[0].keys.size() + parts[1].keys.size(), 3U) << "we were awake, so nothing was kept from us for long";
}

TEST_F(MemberTest, WhatAMasterChangedAfterItCutUsOffDoesNotComeBackUnderAnother) {
    join_with_values();
    advance(2s);  // this process was stopped; the master told others that values have changed
    master_.end_streams(Error(Code::kUnavailable, "connection lost", ECONNRESET));
    expect_nothing_is_reported();
}

TEST_F(MemberTest, NorDoesItWhenTheEndIsHeardAMomentAfterWeWoke) {
    join_with_values();
    advance(2s);
    master_.set_mood(Mood::kGone);
    beat();
    advance(100ms);
    master_.end_streams(Error(Code::kUnavailable, "connection lost", ECONNRESET));
    expect_nothing_is_reported();
}

TEST_F(MemberTest, NorWhatItChangedWhileItAnsweredUsWithoutAnEventStream) {
    join_with_values();
    master_.end_streams(Error(Code::kUnavailable, "peer closed the connection"));
    master_.settle();
    master_.streams_complete = false;
    beat();  // it follows anew, but the master dies before all is told
    EXPECT_EQ(master_.streams(), 1U);
    master_.streams_complete = true;
    expect_nothing_is_reported();
}

TEST_F(MemberTest, AnAnswerOnItsWayWhenTheMasterDiedDoesNotMeanThatItWentOn) {
    join_with_values();
    master_.in_heartbeat = [this] {
        master_.in_heartbeat = nullptr;
        master_.end_streams(Error(Code::kUnavailable, "peer closed the connection"));
        master_.settle();
    };
    master_.streams_complete = false;
    beat();
    master_.die();
    master_.settle();
    master_.streams_complete = true;
    master_.come_back(101);
    beat();
    EXPECT_THAT(reported_keys(), UnorderedElementsAre("a", "b", "c"));
}

TEST_F(MemberTest, TellsTheNextMasterWhomTheLastOneWentOnWithout) {
    join_with_values();
    constexpr Behind kLost{{8, 1}, {100, 8}}, kBack{{8, 2}, {100, 9}}, kEverybody{{}, {100, 0}};
    EventUpdate update;
    update.behind = {kLost, kBack, kEverybody};
    master_.tell(update);
    update = {};
    update.caught_up = {kBack.client};
    master_.tell(update);
    master_.settle();
    master_.die();
    master_.settle();
    master_.come_back(101);
    beat();
    EXPECT_THAT(master_.take_witnessed(), ElementsAre(kLost, kEverybody));
    EXPECT_EQ(master_.heard(), (HistoryPoint{100, 7})) << "its own stream was complete then";
    EXPECT_THAT(reported_keys(), UnorderedElementsAre("a", "b", "c")) << "that was another";
    master_.die();
    master_.settle();
    master_.come_back(102);
    beat();
    EXPECT_THAT(master_.take_witnessed(), IsEmpty()) << "the one before did not say so any more";
    EXPECT_EQ(master_.heard(), (HistoryPoint{101, 7}));
}

TEST_F(MemberTest, AStreamThatIsNotCompleteDoesNotCountAsHeard) {
    join_with_values();
    master_.die();
    master_.settle();
    master_.streams_complete = false;
    master_.streams_break = true;
    master_.come_back(101);
    beat();
    master_.die();
    master_.settle();
    master_.streams_complete = true;
    master_.streams_break = false;
    master_.come_back(102);
    beat();
    EXPECT_EQ(master_.heard(), (HistoryPoint{100, 7}));
}

TEST_F(MemberTest, WhatAMasterDidWithoutUsIsNotForgottenWhenTheNextOnesStreamBreaksAtItsStart) {
    join_with_values();
    advance(2s);  // this process was stopped; the master told others that values have changed
    master_.end_streams(Error(Code::kUnavailable, "connection lost", ECONNRESET));
    master_.settle();
    master_.streams_complete = false;
    master_.streams_break = true;
    master_.come_back(101);
    beat();
    EXPECT_THAT(reported_keys(), IsEmpty());
    master_.streams_break = false;
    master_.streams_complete = true;
    advance(1s);
    beat();
    EXPECT_EQ(member_.epoch(), 101U);
    EXPECT_THAT(reported_keys(), IsEmpty()) << "the same one, but it knows no more than before";
}

TEST_F(MemberTest, TheMasterThatCutUsOffTellsUsAllAgain) {
    join_with_values();
    advance(2s);
    master_.end_streams(Error(Code::kUnavailable, "connection lost", ECONNRESET));
    master_.settle();
    beat();
    EXPECT_EQ(master_.streams(), 1U);
    master_.die();
    master_.settle();
    master_.come_back(101);
    beat();
    EXPECT_THAT(reported_keys(), UnorderedElementsAre("a", "b", "c"));
}

TEST_F(MemberTest, AnEndThatWasHeardLateIsNotExact) {
    join_with_values();
    advance(40s);  // this process was stopped
    master_.die();
    master_.settle();
    master_.come_back(101);
    beat();
    for (const Part& part : master_.take_parts()) EXPECT_FALSE(part.exact);
}

TEST_F(MemberTest, SilenceForTheClientsTimeEndsWritesAndTheSameMasterMayComeBack) {
    join_with_values();
    master_.set_mood(Mood::kGone);
    const Time silent = now();
    EXPECT_TRUE(member_.answering());
    beat();
    EXPECT_FALSE(member_.answering());
    while (now() - silent < 9900ms) beat();
    EXPECT_THAT(listener_.take_master(), IsEmpty());
    while (now() - silent < 10s) beat();
    EXPECT_THAT(listener_.take_master(), ElementsAre("lost"));
    EXPECT_EQ(member_.epoch(), 0U);
    for (int i = 0; i < 50; ++i) beat();
    EXPECT_THAT(listener_.take_master(), IsEmpty()) << "said once";
    master_.set_mood(Mood::kAnswers);  // it was only cut off
    master_.take_log();
    beat();
    EXPECT_THAT(listener_.take_master(), ElementsAre("found 100"));
    EXPECT_TRUE(member_.answering());
    EXPECT_EQ(member_.epoch(), 100U);
    EXPECT_THAT(master_.take_log(), ElementsAre("ping")) << "it still knows us: nothing to report, and the stream goes on";
}

TEST_F(MemberTest, ALongSleepOfItsOwnCountsAsSilence) {
    join_with_values();
    advance(15s);
    bool asked = false;
    master_.in_heartbeat = [&] { asked = true; };
    listener_.in_lost = [&] { EXPECT_FALSE(asked) << "writes end before anything else"; };
    next_ = now();
    beat();
    EXPECT_THAT(listener_.take_master(), ElementsAre("lost", "found 100"));
}

TEST_F(MemberTest, OrdersHeardAfterALongSleepAreVoid) {
    join_with_values();
    listener_.take();
    advance(15s);  // the event stream's thread may wake up before the one that heartbeats
    EventUpdate update{.sequence = 7, .changed = {{"t", "k"}}};
    update.orders.push_back({.key = "where another value may lie by now"});
    master_.tell(update);
    EXPECT_THAT(listener_.take(), ElementsAre("changed 1"));
}

TEST_F(MemberTest, AMasterThatGaveUpThisClientGetsEverythingBack) {
    join_with_values();
    master_.give_up(kClient);
    master_.settle();
    beat();
    EXPECT_THAT(listener_.take_master(), ElementsAre("lost", "found 100"));
    EXPECT_THAT(reported_keys(), UnorderedElementsAre("a", "b", "c"));
    EXPECT_THAT(master_.mounted(), ElementsAre(kSegment));
}

TEST_F(MemberTest, AMasterReplacedDuringTheReportIsToldFromTheBeginning) {
    join_with_values();
    master_.die();
    master_.come_back(101);
    int calls = 0;
    master_.in_remount = [&] {
        if (++calls != 3) return;  // the first one names no segment
        master_.die();
        master_.come_back(102);
    };
    beat();
    EXPECT_EQ(member_.epoch(), 0U);
    EXPECT_EQ(next_ - now(), 100ms);
    EXPECT_THAT(listener_.take_master(), ElementsAre("lost"));
    master_.take_parts();
    beat();
    EXPECT_THAT(listener_.take_master(), ElementsAre("found 102"));
    EXPECT_EQ(reported_keys().size(), 3U);
}

TEST_F(MemberTest, AMasterReplacedRightAfterTheReportIsNoticed) {
    join_with_values();
    master_.die();
    master_.come_back(101);
    int heartbeats = 0;
    master_.in_heartbeat = [&] {
        if (++heartbeats != 2) return;
        master_.die();
        master_.come_back(102);
    };
    beat();
    EXPECT_THAT(listener_.take_master(), ElementsAre("lost"));
    beat();
    EXPECT_THAT(listener_.take_master(), ElementsAre("found 102"));
}

TEST_F(MemberTest, SegmentsAreOpenedForWritesOnlyWhenTheEventStreamTellsOfThem) {
    join_with_values();
    master_.die();
    master_.settle();
    master_.streams_complete = false;
    master_.come_back(101);
    master_.take_log();
    std::jthread joining([this] { beat(); });
    ASSERT_TRUE(master_.wait_for("follow"));
    for (const Part& part : master_.take_parts()) EXPECT_TRUE(part.more) << "nothing may be written yet";
    master_.tell({.sequence = 2, .complete = true});
    joining.join();
    const std::vector<Part> parts = master_.take_parts();
    ASSERT_EQ(parts.size(), 1U);
    EXPECT_FALSE(parts[0].more);
    EXPECT_EQ(member_.epoch(), 101U);
}

TEST_F(MemberTest, AnEventStreamThatBreaksAtItsStartMeansJoiningAgain) {
    join_with_values();
    master_.die();
    master_.settle();
    master_.streams_complete = false;
    master_.come_back(101);
    master_.take_log();
    std::jthread joining([this] { beat(); });
    ASSERT_TRUE(master_.wait_for("follow"));
    master_.end_streams(Error(Code::kNoSpace, "reads too slowly"));
    joining.join();
    EXPECT_EQ(member_.epoch(), 0U);
    EXPECT_EQ(next_ - now(), 100ms);
    master_.streams_complete = true;
    master_.take_parts();
    beat();
    EXPECT_EQ(member_.epoch(), 101U);
    EXPECT_THAT(reported_keys(), UnorderedElementsAre("a", "b", "c"));
}

TEST_F(MemberTest, AnEventStreamThatStopsAtItsStartMeansJoiningAgain) {
    join_with_values();
    master_.die();
    master_.settle();
    int heartbeats = 0;
    master_.in_heartbeat = [&] {  // while it waits
        advance(15s);
        if (++heartbeats == 20) master_.end_streams(Error(Code::kNoSpace, "otherwise this test would not end"));
    };
    master_.streams_complete = false;  // as where what acknowledges its first parts was lost
    master_.come_back(101);
    beat();
    EXPECT_LT(heartbeats, 20);
    EXPECT_EQ(member_.epoch(), 0U);
    master_.in_heartbeat = nullptr;
    master_.streams_complete = true;
    master_.take_parts();
    beat();
    EXPECT_EQ(member_.epoch(), 101U);
    EXPECT_THAT(reported_keys(), UnorderedElementsAre("a", "b", "c"));
}

TEST_F(MemberTest, AnEventStreamThatTakesLongAtItsStartIsWaitedFor) {
    join_with_values();
    master_.die();
    master_.settle();
    int heartbeats = 0;
    master_.in_heartbeat = [&] {
        advance(15s);
        if (++heartbeats > 2) master_.tell({.sequence = static_cast<uint64_t>(heartbeats), .complete = heartbeats == 5});
    };
    master_.streams_complete = false;
    master_.come_back(101);
    beat();
    EXPECT_EQ(heartbeats, 5);
    EXPECT_EQ(member_.epoch(), 101U);
}

TEST_F(MemberTest, AnEventStreamThatBreaksAloneIsFollowedAgainAndNotExactUntilComplete) {
    join_with_values();
    advance(500ms);
    master_.end_streams(Error(Code::kNoSpace, "reads too slowly"));
    master_.settle();
    EXPECT_EQ(wakes_, 1);
    next_ = now();
    master_.streams_complete = false;
    beat();
    EXPECT_THAT(listener_.take(), ElementsAre("all changed", "all changed")) << "at the end, and at the beginning";
    EXPECT_EQ(master_.streams(), 1U);
    EXPECT_EQ(next_ - now(), 300ms);
    master_.die();
    master_.streams_complete = true;
    master_.come_back(101);
    beat();
    for (const Part& part : master_.take_parts()) EXPECT_FALSE(part.exact);
    master_.die();
    master_.settle();
    master_.come_back(102);
    beat();
    for (const Part& part : master_.take_parts()) EXPECT_TRUE(part.exact);
}

TEST_F(MemberTest, AnEventStreamThatIsRefusedAgainAndAgainCostsOneTryPerInterval) {
    join();
    master_.in_heartbeat = [this] {
        master_.end_streams(Error(Code::kNoSpace, "no"));
        master_.settle();
    };
    const Time began = next_ = now();
    while (now() - began < 1s) {
        beat();
        next_ = std::min(next_, now() + 10ms);  // woken much more often
    }
    EXPECT_LE(master_.count("follow"), 11U);
    EXPECT_GE(master_.count("follow"), 8U);
}

TEST_F(MemberTest, MountsAndUnmounts) {
    join();
    EXPECT_EQ(*member_.mount(spec(), Deadline::after(20s)), StoreCode::kOk);
    EXPECT_EQ(*member_.mount(spec(), Deadline::after(20s)), StoreCode::kOk);
    EXPECT_THAT(master_.mounted(), ElementsAre(kSegment));
    EXPECT_EQ(*member_.unmount(kSegment, 0s, Deadline::after(20s)), StoreCode::kOk);
    EXPECT_EQ(*member_.unmount(kSegment, 0s, Deadline::after(20s)), StoreCode::kSegmentNotFound);
    master_.die();
    master_.come_back(101);
    beat();
    EXPECT_THAT(master_.mounted(), IsEmpty());
}

TEST_F(MemberTest, MountingWithoutAMasterFailsAtOnceAndIsNotRepeatedBehindTheCallersBack) {
    join();
    master_.die();
    beat();
    const auto refused = member_.mount(spec(), Deadline::after(20s));
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), Code::kUnavailable);
    EXPECT_THAT(refused.error().message(), ::testing::HasSubstr("does not answer"));
    EXPECT_EQ(member_.unmount(kSegment, 0s, Deadline::after(20s)).error().code(), Code::kUnavailable);
    master_.come_back(101);
    beat();
    EXPECT_THAT(master_.mounted(), IsEmpty());
}

TEST_F(MemberTest, AMountWhoseAnswerWasLostIsTakenBack) {
    join();
    master_.in_mount = [this] { master_.set_mood(Mood::kGone); };
    master_.mount_code = [](const MountRequest&) -> Result<StoreCode> { return fail(Code::kUnavailable, "connection lost"); };
    EXPECT_EQ(member_.mount(spec(), Deadline::after(20s)).error().code(), Code::kUnavailable);
    master_.set_mood(Mood::kAnswers);
    master_.take_log();
    beat();
    EXPECT_THAT(master_.take_log(), ElementsAre("ping", "acknowledge 1", "unmount"));
    beat();
    EXPECT_THAT(master_.take_log(), ElementsAre("ping", "acknowledge 1"));
}

TEST_F(MemberTest, AMasterThatForgotUsMountsAfterWeJoinedAgain) {
    join();
    master_.give_up(kClient);
    std::jthread mounting([this] { EXPECT_EQ(*member_.mount(spec(), Deadline::after(20s)), StoreCode::kOk); });
    ASSERT_TRUE(master_.wait_for("mount"));
    beat();
    mounting.join();
    EXPECT_THAT(master_.mounted(), ElementsAre(kSegment));
}

TEST_F(MemberTest, AnUnmountDuringAChangeOfMasterIsRepeated) {
    join_with_values();
    master_.in_unmount = [this, first = true]() mutable {
        if (!std::exchange(first, false)) return;
        master_.die();
        master_.come_back(101);
        beat();  // reports the segment that is just being unmounted
    };
    ASSERT_TRUE(member_.unmount(kSegment, 0s, Deadline::after(20s)));
    beat();
    EXPECT_THAT(master_.mounted(), IsEmpty());
    EXPECT_EQ(catalogue_.objects(), 0U);
}

TEST_F(MemberTest, NobodyWaitsForAMemberThatLeaves) {
    join();
    master_.give_up(kClient);
    std::jthread mounting(
        [this] { EXPECT_FALSE(member_.mount(spec(), Deadline::never()).value_or(StoreCode::kInternalError) == StoreCode::kOk); });
    ASSERT_TRUE(master_.wait_for("mount"));
    member_.begin_leaving();
    mounting.join();
    EXPECT_EQ(member_.mount(spec(), Deadline::never()).error().code(), Code::kCancelled);
    member_.say_goodbye(Deadline::after(20s));
    EXPECT_EQ(master_.count("goodbye"), 1U);
    EXPECT_EQ(master_.streams(), 0U);
}

}  // namespace mooncake::store
