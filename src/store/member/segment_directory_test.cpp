// SPDX-License-Identifier: Apache-2.0
#include "store/member/segment_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>
#include <thread>

#include "store/member/testing/fake_master.h"

namespace mooncake::store {

namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using Mood = testing::FakeMaster::Mood;

constexpr Time kStart{std::chrono::hours(1)};

SegmentsReply::Entry entry(uint32_t number, uint64_t id) {
    return {.number = number, .segment = {.id = {id, id}, .name = format_text("host:{}", id), .base = 0x1000, .size = 1 << 20}};
}

class SegmentDirectoryTest : public ::testing::Test {
protected:
    SegmentDirectoryTest() { list(7, {entry(1, 11), entry(2, 12)}); }
    void list(uint64_t epoch, std::vector<SegmentsReply::Entry> entries) {
        master_.list = {.segments = std::move(entries), .epoch = epoch};
    }
    Result<SegmentHandle> find(uint64_t epoch, uint32_t number) { return directory_.find(epoch, number, Deadline::after(20s)); }
    size_t asked() const { return master_.count("segments"); }

    testing::FakeMaster master_;
    SegmentDirectory directory_{master_, ClientId{5, 5}};
};

}  // namespace

TEST_F(SegmentDirectoryTest, AsksOnceForAllItLearns) {
    EXPECT_EQ((*find(7, 1))->spec.name, "host:11");
    EXPECT_EQ((*find(7, 2))->spec.name, "host:12");
    EXPECT_EQ(*find(7, 1), *find(7, 1));
    EXPECT_EQ(asked(), 1U);
}

TEST_F(SegmentDirectoryTest, AsksOnceForANumberThatIsNotThere) {
    for (int i = 0; i < 3; ++i) EXPECT_EQ(find(7, 9).error().code(), Code::kNotFound);
    EXPECT_EQ(asked(), 1U);
    EXPECT_TRUE(find(7, 1));
}

TEST_F(SegmentDirectoryTest, LearnsOfNewSegmentsAndForgetsThoseThatWent) {
    const SegmentHandle first = *find(7, 1);
    list(7, {entry(1, 11), entry(3, 13)});
    EXPECT_EQ((*find(7, 3))->spec.name, "host:13");
    EXPECT_EQ(*find(7, 1), first) << "handles stay the same";
    EXPECT_EQ(find(7, 2).error().code(), Code::kNotFound);
}

TEST_F(SegmentDirectoryTest, NumbersBelongToOneLifeOfTheMaster) {
    ASSERT_TRUE(find(7, 1));
    list(8, {entry(1, 99)});
    EXPECT_EQ((*find(8, 1))->spec.name, "host:99");
    EXPECT_EQ(asked(), 2U);
    EXPECT_EQ(find(7, 1).error().code(), Code::kStale);
    EXPECT_EQ(find(7, 1).error().code(), Code::kStale);
    EXPECT_EQ(asked(), 2U) << "an epoch that is over needs no question";
    EXPECT_EQ(find(6, 1).error().code(), Code::kStale);
}

TEST_F(SegmentDirectoryTest, ForgetsAllButMayMeetTheSameMasterAgain) {
    ASSERT_TRUE(find(7, 1));
    directory_.forget_all();
    EXPECT_TRUE(find(7, 1));
    EXPECT_EQ(asked(), 2U);
}

TEST_F(SegmentDirectoryTest, ASilentMasterCostsTheDeadlineAndAnErrorIsNotRemembered) {
    master_.set_mood(Mood::kSilent);
    EXPECT_EQ(directory_.find(7, 1, Deadline::after(10ms)).error().code(), Code::kTimedOut);
    master_.set_mood(Mood::kGone);
    EXPECT_EQ(find(7, 1).error().code(), Code::kUnavailable);
    master_.set_mood(Mood::kAnswers);
    EXPECT_TRUE(find(7, 1));
}

TEST_F(SegmentDirectoryTest, ManyCallersShareOneQuestion) {
    constexpr int kThreads = 16;
    std::latch all_there(kThreads + 1);
    std::atomic<int> found{0};
    master_.in_segments = [&, first = true]() mutable {
        if (std::exchange(first, false)) all_there.arrive_and_wait();  // until everybody waits or is about to
    };
    std::vector<std::jthread> threads;
    for (int i = 0; i < kThreads; ++i)
        threads.emplace_back([&, i] {
            EXPECT_TRUE(i == 0 || master_.wait_for("segments"));
            all_there.count_down();
            found += find(7, 1 + static_cast<uint32_t>(i % 2)) ? 1 : 0;
        });
    threads.clear();
    EXPECT_EQ(found, kThreads);
    EXPECT_EQ(asked(), 1U);
}

TEST_F(SegmentDirectoryTest, AListAskedForBeforeTheCallProvesNothing) {
    std::latch began(1), go_on(1);
    list(7, {});
    master_.in_segments = [&, first = true]() mutable {
        if (!std::exchange(first, false)) return list(7, {entry(1, 11)});  // mounted meanwhile
        began.count_down();
        go_on.wait();
    };
    std::jthread other([&] { EXPECT_EQ(find(7, 5).error().code(), Code::kNotFound); });
    began.wait();
    std::jthread caller([&] { EXPECT_TRUE(find(7, 1)); });
    go_on.count_down();
}

TEST_F(SegmentDirectoryTest, AnotherCallersShortDeadlineIsNotOurs) {
    std::latch waiting(1);
    master_.set_mood(Mood::kSilent);
    std::jthread hasty([&] {
        waiting.count_down();
        EXPECT_EQ(directory_.find(7, 1, Deadline::after(50ms)).error().code(), Code::kTimedOut);
        master_.set_mood(Mood::kAnswers);
    });
    waiting.wait();
    ASSERT_TRUE(master_.wait_for("segments"));
    EXPECT_TRUE(find(7, 1));
}

TEST_F(SegmentDirectoryTest, AFailedSegmentIsLeftAloneForAWhileThatDoubles) {
    const SegmentHandle bad = *find(7, 1), good = *find(7, 2);
    EXPECT_TRUE(directory_.all_reachable());
    Time now = kStart;
    for (const Duration pause : {50ms, 100ms, 200ms, 400ms, 800ms, 1600ms, 3200ms, 5000ms, 5000ms}) {
        directory_.failed(bad, now);
        directory_.failed(bad, now + pause / 2);  // one that was under way
        EXPECT_FALSE(directory_.reachable(bad, now + pause - 1ms));
        EXPECT_TRUE(directory_.reachable(bad, now + pause));
        EXPECT_EQ(directory_.trial(bad), std::max<Duration>(50ms, pause / 4));
        EXPECT_EQ(directory_.trial(good), std::nullopt);
        EXPECT_TRUE(directory_.reachable(good, now));
        EXPECT_THAT(directory_.unreachable(now), ElementsAre(1U));
        EXPECT_THAT(directory_.unreachable(now + pause), IsEmpty());
        EXPECT_THAT(directory_.unreachable(now + pause, std::vector{bad, good}), ElementsAre(1U)) << "who has just met it";
        now += pause;
    }
    EXPECT_FALSE(directory_.all_reachable());
    directory_.worked(good);
    EXPECT_FALSE(directory_.all_reachable());
    directory_.worked(bad);
    EXPECT_TRUE(directory_.all_reachable());
    EXPECT_EQ(directory_.trial(bad), std::nullopt);
    directory_.failed(bad, now);
    EXPECT_TRUE(directory_.reachable(bad, now + 50ms)) << "it starts anew";
}

TEST_F(SegmentDirectoryTest, HealthOutlivesTheMasterAndEndsWithTheSegment) {
    directory_.failed(*find(7, 1), kStart);
    list(8, {entry(4, 11), entry(5, 12)});
    EXPECT_FALSE(directory_.reachable(*find(8, 4), kStart));
    EXPECT_THAT(directory_.unreachable(kStart), ElementsAre(4U));
    directory_.forget_all();
    EXPECT_THAT(directory_.unreachable(kStart), IsEmpty()) << "its number is not known";
    list(9, {entry(1, 12)});
    ASSERT_TRUE(find(9, 1));
    EXPECT_TRUE(directory_.all_reachable());
}

TEST_F(SegmentDirectoryTest, TheMasterIsToldWithoutMakingTheCallerWait) {
    const SegmentHandle bad = *find(7, 1), other = *find(7, 2);
    master_.set_mood(Mood::kSilent);
    directory_.failed(bad, kStart);  // would hang here
    ASSERT_TRUE(master_.wait_for("report_failures"));
    for (int i = 0; i < 1000; ++i) directory_.failed(other, kStart + i * 10s);
    master_.set_mood(Mood::kAnswers);
    ASSERT_TRUE(master_.wait_for("report_failures", 2));
    directory_.stop();
    EXPECT_THAT(master_.failures(), ElementsAre(SegmentId{11, 11}, SegmentId{12, 12})) << "a thousand failures are one";
    directory_.failed(bad, kStart + 1h);  // after the end: harmless
}

}  // namespace mooncake::store
