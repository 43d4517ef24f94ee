// SPDX-License-Identifier: Apache-2.0
#include "store/member/membership.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>
#include <thread>

#include "store/member/testing/fake_master.h"
#include "store/node/catalogue.h"

namespace mooncake::store {

namespace {

using Mood = testing::FakeMaster::Mood;

constexpr ClientId kClient{5, 5};

class Listener final : public MembershipListener {
public:
    void keys_changed(const std::vector<KeyChanged>&) override {}
    void all_keys_changed() override {}
    void master_lost() override {}
    void master_found(uint64_t epoch) override { found = epoch; }
    void copy_ordered(const CopyOrder&) override {
        ordered.count_down();
        proceed.wait();
    }
    std::atomic<uint64_t> found{0};
    std::latch ordered{1}, proceed{1};
};

class MembershipTest : public ::testing::Test {
protected:
    testing::FakeMaster master_;
    Listener listener_;
    Catalogue catalogue_;
    std::unique_ptr<Membership> membership_ = Membership::create(
        master_, kClient, listener_, catalogue_, {.heartbeat_interval = 5ms, .retry_interval = 5ms, .report_entries_max = 100});
};

}  // namespace

TEST_F(MembershipTest, SendsHeartbeatsByItselfAndSaysGoodbyeOnce) {
    ASSERT_TRUE(membership_->start(Deadline::after(20s)));
    EXPECT_EQ(listener_.found, 100U);
    ASSERT_TRUE(master_.wait_for("ping", 10));
    membership_->stop();
    membership_->stop();
    EXPECT_EQ(master_.count("goodbye"), 1U);
    EXPECT_EQ(membership_->epoch(), 0U);
    const size_t heartbeats = master_.count("ping");
    membership_.reset();
    EXPECT_EQ(master_.count("ping"), heartbeats);
    EXPECT_EQ(master_.streams(), 0U);
}

TEST_F(MembershipTest, StartFailsWithTheErrorOfTheFirstTry) {
    master_.set_mood(Mood::kGone);
    EXPECT_EQ(membership_->start(Deadline::after(20s)).error().code(), Code::kUnavailable);
    EXPECT_EQ(master_.count("ping"), 1U);
    master_.set_mood(Mood::kSilent);
    EXPECT_EQ(membership_->start(Deadline::after(10ms)).error().code(), Code::kTimedOut);
    membership_->stop();
    EXPECT_EQ(master_.count("goodbye"), 0U) << "nobody knew us";
}

TEST_F(MembershipTest, StartTakesNoLongerThanItMay) {
    master_.in_heartbeat = [this] { master_.set_mood(Mood::kSilent); };
    EXPECT_EQ(membership_->start(Deadline::after(50ms)).error().code(), Code::kTimedOut) << "hangs in the report";
    master_.set_mood(Mood::kAnswers);
    master_.in_heartbeat = nullptr;
    master_.streams_complete = false;
    EXPECT_EQ(membership_->start(Deadline::after(50ms)).error().code(), Code::kTimedOut) << "hangs at the start of the stream";
}

TEST_F(MembershipTest, FindsARestartedMasterByItself) {
    ASSERT_TRUE(membership_->start(Deadline::after(20s)));
    ASSERT_EQ(*membership_->mount({.id = {1, 1}, .name = "n", .size = 4096}, Deadline::after(20s)), StoreCode::kOk);
    for (uint64_t epoch = 101; epoch < 110; ++epoch) {
        master_.die();
        master_.take_log();
        ASSERT_TRUE(master_.wait_for("ping", 2));
        master_.come_back(epoch);
        ASSERT_TRUE(master_.wait_for("follow"));
        EXPECT_EQ(master_.mounted().size(), 1U);
    }
}

TEST_F(MembershipTest, StopsSoonWhileTheMasterHangs) {
    ASSERT_TRUE(membership_->start(Deadline::after(20s)));
    master_.set_mood(Mood::kSilent);
    master_.take_log();
    ASSERT_TRUE(master_.wait_for("ping"));
    const Time began = Clock::now();
    membership_->stop();
    EXPECT_LT(Clock::now() - began, 10s);  // one second, and what a busy machine adds
}

TEST_F(MembershipTest, StopsSoonWhileTheMasterHangsInAReport) {
    std::atomic<bool> falls_silent{false};
    master_.in_heartbeat = [&] {
        if (falls_silent) master_.set_mood(Mood::kSilent);
    };
    ASSERT_TRUE(membership_->start(Deadline::after(20s)));
    falls_silent = true;
    master_.take_log();
    master_.give_up(kClient);
    ASSERT_TRUE(master_.wait_for("remount"));
    const Time began = Clock::now();
    membership_->stop();  // a report may take half a minute otherwise
    EXPECT_LT(Clock::now() - began, 10s);
}

TEST_F(MembershipTest, AListenerThatTakesItsTimeDelaysNoHeartbeats) {
    ASSERT_TRUE(membership_->start(Deadline::after(20s)));
    EventUpdate order;
    order.orders.push_back({.key = "k"});
    std::jthread telling([&] { master_.tell(order); });
    listener_.ordered.wait();
    master_.take_log();
    EXPECT_TRUE(master_.wait_for("ping", 20));
    listener_.proceed.count_down();
}

}  // namespace mooncake::store
