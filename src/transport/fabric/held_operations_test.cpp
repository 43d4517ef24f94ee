// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/held_operations.h"

#include <gtest/gtest.h>

#include <vector>

namespace mooncake::fabric {
namespace {

class ManualTime final : public TimeSource {
public:
    Time now() const noexcept override { return now_; }
    void pass(Duration time) { now_ += time; }

private:
    Time now_ = Time(1h);
};

class HeldOperationsTest : public ::testing::Test {
protected:
    /// A piece that went to rail 0 of the target.
    Held piece(uint64_t remote_address, bool doubtful = true) {
        return {.piece = {.run = &run, .remote = remote_address, .length = 1},
                .epoch = 1,
                .since = time.now(),
                .posted = true,
                .doubtful = doubtful,
                .reason = Error(Code::kUnavailable, "it broke")};
    }
    /// What can go again, by address.
    std::vector<uint64_t> released() {
        std::vector<uint64_t> found;
        held.release([&](const Held& one) { found.push_back(one.piece.remote); });
        return found;
    }
    std::vector<uint64_t> judged(Time asked) {
        std::vector<uint64_t> found;
        held.settle(asked, [&](Held& one) {
            found.push_back(one.piece.remote);
            return true;
        });
        return found;
    }
    void reopen(uint64_t epoch) { remotes.renew({.rail = 0, .epoch = epoch, .name = {}}); }

    Completion completion;
    SliceRun run{.completion = &completion};
    ProviderProfile profile{.fence = Fence::kNeeded, .fence_grace = 10s};
    ManualTime time;
    const Incarnation target = Incarnation::random();
    DoubtTable heirs;
    RemoteRails remotes{std::vector<RailRecord>{{.epoch = 1}}, profile, time};
    HeldOperations held{remotes, time, heirs, target};
};

TEST_F(HeldOperationsTest, AWriteStaysUntilItsEndpointIsClosed) {
    held.hold(piece(10));
    time.pass(1ms);
    EXPECT_TRUE(released().empty()) << "nobody has been asked";
    EXPECT_EQ(judged(time.now()), std::vector<uint64_t>{10});
    EXPECT_TRUE(released().empty()) << "it may still land";
    EXPECT_TRUE(judged(time.now()).empty()) << "once is enough";
    reopen(2);
    EXPECT_EQ(released(), std::vector<uint64_t>{10});
    EXPECT_TRUE(released().empty());
}

TEST_F(HeldOperationsTest, AReadGoesAsSoonAsTheTargetHasAnswered) {
    held.hold(piece(10, false));
    EXPECT_EQ(judged(time.now()), std::vector<uint64_t>{10});
    EXPECT_EQ(released(), std::vector<uint64_t>{10});
}

TEST_F(HeldOperationsTest, NobodyIsBlamedForAnEndpointThatWasClosed) {
    held.hold(piece(10));
    reopen(2);
    EXPECT_TRUE(judged(time.now()).empty());
    EXPECT_EQ(released(), std::vector<uint64_t>{10});
}

TEST_F(HeldOperationsTest, AnAnswerSaysNothingOfWhatFailedAfterTheQuestion) {
    const Time asked = time.now();
    time.pass(1ms);
    held.hold(piece(10));
    EXPECT_TRUE(judged(asked).empty());
    EXPECT_TRUE(released().empty());
}

TEST_F(HeldOperationsTest, WithAGraceTimeWaitingIsEnough) {
    profile.fence = Fence::kGrace;
    held.hold(piece(10));
    EXPECT_EQ(judged(time.now()), std::vector<uint64_t>{10});
    EXPECT_TRUE(released().empty());
    time.pass(profile.fence_grace);
    EXPECT_EQ(released(), std::vector<uint64_t>{10});
}

TEST_F(HeldOperationsTest, WhatIsGivenUpLeavesADoubtUntilItsEndpointIsClosed) {
    Completion other;
    SliceRun other_run{.completion = &other};
    held.hold(piece(10));
    held.hold(piece(20, false));
    Held of_other = piece(30);
    of_other.piece.run = &other_run;
    held.hold(of_other);
    std::vector<uint64_t> given_up;
    held.give_up(&completion, [&](const Piece& one) { given_up.push_back(one.remote); });
    EXPECT_EQ(given_up, (std::vector<uint64_t>{10, 20}));
    EXPECT_EQ(held.doubts(), (Doubts{{0, 1}}));
    EXPECT_TRUE(heirs.take(target).empty()) << "we are still here";
    reopen(2);
    held.forget_closed();
    EXPECT_FALSE(held.in_doubt());
    EXPECT_TRUE(judged(time.now()).empty());
    EXPECT_EQ(released(), std::vector<uint64_t>{30});
}

TEST_F(HeldOperationsTest, DoubtsAreLeftToWhoConnectsNext) {
    held.add_doubt(0, 1);
    held.bequeath();
    EXPECT_EQ(heirs.take(target), (Doubts{{0, 1}}));
    held.hold(piece(10));
    held.give_up(nullptr, [](const Piece&) {});
    EXPECT_EQ(heirs.take(target), (Doubts{{0, 1}})) << "also those that come later";
}

TEST_F(HeldOperationsTest, JudgingEndsWithThePeer) {
    held.hold(piece(10));
    held.hold(piece(20));
    int count = 0;
    held.settle(time.now(), [&](Held&) {
        ++count;
        held.give_up(nullptr, [](const Piece&) {});
        return false;
    });
    EXPECT_EQ(count, 1);
}

}  // namespace
}  // namespace mooncake::fabric
