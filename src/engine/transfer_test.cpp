// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstring>
#include <latch>
#include <thread>

#include "engine/batch.h"
#include "engine/core.h"
#include "engine/testing/fake_world.h"
#include "engine/testing/two_ways.h"

namespace mooncake {
namespace {

using testing::FakeWorld;

class TransferTest : public ::testing::Test {
protected:
    Result<uint64_t> write(Deadline deadline = Deadline::after(10s)) {
        const std::vector<Block> blocks = {
            {.local = local.data(), .remote = reinterpret_cast<uint64_t>(remote.data()), .length = 64},
            {.local = local.data() + 128, .remote = reinterpret_cast<uint64_t>(remote.data() + 128), .length = 64}};
        Completion completion;
        std::vector<Slice> slices;
        world.registry->resolve(blocks, &completion, slices);
        Incarnation life;
        const auto section = world.sessions->section();
        return run_transfer(world.core, world.session("peer"), life, Direction::kWrite, slices, completion, deadline, Clock::now());
    }

    FakeWorld world;
    std::vector<std::byte> local = std::vector<std::byte>(256, std::byte{1});
    std::vector<std::byte> remote = std::vector<std::byte>(256);
};

struct CountingCopier final : Copier {
    void begin(const std::byte*, uint64_t) noexcept override { ++begun; }
    void copy(std::byte* to, const std::byte* from, uint64_t length) noexcept override { std::memcpy(to, from, length); }
    void passed(const std::byte*, const std::byte*, uint64_t) noexcept override {}
    int begun = 0;
};

TEST_F(TransferTest, TellsACopierOfEveryAttemptAndMergesNothingThatHasOne) {
    CountingCopier first, second;
    const auto remote_at = [this](size_t at) { return reinterpret_cast<uint64_t>(remote.data() + at); };
    const std::vector<Block> blocks = {{.local = local.data(), .remote = remote_at(0), .length = 64, .copier = &first},
                                       {.local = local.data() + 64, .remote = remote_at(64), .length = 64, .copier = &second},
                                       {.local = local.data() + 128, .remote = remote_at(128), .length = 64},
                                       {.local = local.data() + 192, .remote = remote_at(192), .length = 64}};
    Completion completion;
    std::vector<Slice> slices;
    world.registry->resolve(blocks, &completion, slices);
    ASSERT_EQ(slices.size(), 3u);
    EXPECT_EQ(slices[0].copier, &first);
    EXPECT_EQ(slices[1].copier, &second);
    EXPECT_EQ(slices[2].copier, nullptr);
    int failures = 1;
    world.script.on_slice = [&](const Slice&) { return failures-- > 0 ? Result<>(fail(Code::kUnavailable, "reset")) : Result<>(); };
    Incarnation life;
    const auto section = world.sessions->section();
    EXPECT_TRUE(
        run_transfer(world.core, world.session("peer"), life, Direction::kWrite, slices, completion, Deadline::after(10s), Clock::now()));
    EXPECT_EQ(first.begun, 2);
    EXPECT_EQ(second.begun, 2);
}

TEST_F(TransferTest, MovesAndCounts) {
    EXPECT_EQ(write().value(), 128u);
    EXPECT_EQ(remote[63], std::byte{1});
    EXPECT_EQ(remote[64], std::byte{0});
    EXPECT_EQ(remote[191], std::byte{1});
    const std::string text = world.metrics.to_prometheus_text();
    EXPECT_NE(text.find("mooncake_transfer_bytes_total{direction=\"write\",path=\"fake\"} 128"), std::string::npos) << text;
}

TEST_F(TransferTest, StartsOverOnANewLinkWhenTheOldOneBreaks) {
    int failures = 1;
    world.script.on_slice = [&](const Slice&) -> Result<> {
        if (failures-- > 0) {
            world.script.peers_usable = false;
            return fail(Code::kUnavailable, "reset");
        }
        return {};
    };
    world.script.on_connect = [&]() -> Result<> {
        world.script.peers_usable = true;
        return {};
    };
    EXPECT_TRUE(write());
    EXPECT_EQ(world.script.connects, 2);
}

/// A transfer over the near way, which breaks under it.
Result<uint64_t> transfer_over_a_way_that_breaks(testing::TwoWays& ways, Direction direction) {
    ways.near.on_slice = [&](const Slice&) -> Result<> {
        ways.near.peers_usable = false;
        ways.near_is(Code::kUnavailable);
        return fail(Code::kUnavailable, "no path is left");
    };
    std::byte here[8]{}, there[8]{};
    Completion completion;
    const Slice slice{.local = here, .remote = reinterpret_cast<uint64_t>(there), .length = 8, .completion = &completion};
    Incarnation life;
    const auto section = ways.session.section();
    return run_transfer(ways.world.core, ways.session, life, direction, {&slice, 1}, completion, Deadline::after(10s), Clock::now());
}

TEST_F(TransferTest, GoesOverAnotherTransportOnlyWhenNothingOfItCanLandAnyMore) {
    testing::TwoWays stopped;
    EXPECT_EQ(transfer_over_a_way_that_breaks(stopped, Direction::kWrite).value(), 8u);
    EXPECT_EQ(stopped.near.cancels, 1);
    EXPECT_EQ(stopped.far.submits, 1);

    testing::TwoWays doubtful;
    doubtful.near.on_cancel = Stopped::kRemoteInDoubt;
    const auto moved = transfer_over_a_way_that_breaks(doubtful, Direction::kWrite);
    ASSERT_FALSE(moved);
    EXPECT_NE(moved.error().to_string().find("in doubt"), std::string::npos) << moved.error().to_string();
    EXPECT_EQ(doubtful.far.submits, 0);

    testing::TwoWays read;
    read.near.on_cancel = Stopped::kRemoteInDoubt;
    EXPECT_EQ(transfer_over_a_way_that_breaks(read, Direction::kRead).value(), 8u) << "a read leaves nothing over there";
}

TEST_F(TransferTest, GivesUpAfterAFewAttemptsAndNamesPeerAndPath) {
    world.script.on_slice = [](const Slice&) { return Result<>(fail_errno(Code::kUnavailable, ECONNRESET, "connection lost")); };
    const auto moved = write();
    ASSERT_FALSE(moved);
    EXPECT_EQ(world.script.submits, kAttemptsMax);
    EXPECT_NE(moved.error().to_string().find("peer over fake"), std::string::npos) << moved.error().to_string();
    EXPECT_NE(moved.error().to_string().find("errno 104"), std::string::npos);
}

TEST_F(TransferTest, DoesNotRepeatWhatCannotHelp) {
    world.script.on_slice = [](const Slice&) { return Result<>(fail(Code::kNotRegistered, "not yours")); };
    EXPECT_EQ(write().error().code(), Code::kNotRegistered);
    EXPECT_EQ(world.script.submits, 1);
}

TEST_F(TransferTest, ARefusalByAPeerThatHasASuccessorSaysSoAndLeavesThatAlone) {
    int refusals = 1;
    world.script.on_slice = [&](const Slice&) -> Result<> {
        if (refusals-- <= 0) return {};
        world.restart();
        return fail(Code::kNotRegistered, "going away");
    };
    EXPECT_EQ(write().error().code(), Code::kStale);
    EXPECT_EQ(remote[0], std::byte{0}) << "these addresses mean something else there, or nothing";
    EXPECT_EQ(world.script.connects, 2);
    EXPECT_TRUE(write()) << "who calls again has been told";
}

TEST_F(TransferTest, MemoryThatTheNearTransportCannotCarryGoesOverTheNextAndLeavesTheNearToTheRest) {
    testing::TwoWays ways;
    int refusals = 1;
    ways.near.on_slice = [&](const Slice&) -> Result<> {
        if (refusals-- > 0) return fail(Code::kNotSupported, "not this memory");
        return {};
    };
    std::byte here[8]{}, there[8]{};
    Completion completion;
    const Slice slice{.local = here, .remote = reinterpret_cast<uint64_t>(there), .length = 8, .completion = &completion};
    const auto transfer = [&] {
        Incarnation life;
        const auto section = ways.session.section();
        return run_transfer(ways.world.core, ways.session, life, Direction::kWrite, {&slice, 1}, completion, Deadline::after(10s),
                            Clock::now());
    };
    EXPECT_EQ(transfer().value(), 8u);
    EXPECT_EQ(ways.far.submits, 1);
    EXPECT_EQ(transfer().value(), 8u);
    EXPECT_EQ(ways.near.submits, 2);
    EXPECT_EQ(ways.far.submits, 1);
}

TEST_F(TransferTest, ATimedOutTransferIsCancelledBeforeItReturns) {
    world.script.hold = true;
    const auto moved = write(Deadline::after(5ms));
    ASSERT_FALSE(moved);
    EXPECT_EQ(moved.error().code(), Code::kTimedOut);
    EXPECT_EQ(world.script.cancels, 1);
    EXPECT_NE(moved.error().message().find("nothing of it moves any more"), std::string::npos);
    world.script.release();
    EXPECT_EQ(remote[0], std::byte{0});
}

TEST_F(TransferTest, SaysWhenThePeerIsInDoubt) {
    world.script.hold = true;
    world.script.on_cancel = Stopped::kRemoteInDoubt;
    const auto moved = write(Deadline::after(5ms));
    ASSERT_FALSE(moved);
    EXPECT_NE(moved.error().message().find("in doubt"), std::string::npos);
}

TEST_F(TransferTest, ATransportThatCannotServeThePeerIsNotAskedAgain) {
    world.script.on_slice = [](const Slice&) { return Result<>(fail(Code::kNotSupported, "no")); };
    const auto moved = write();
    ASSERT_FALSE(moved);
    EXPECT_EQ(moved.error().code(), Code::kNotSupported);
    EXPECT_EQ(world.script.submits, 1) << "there is no other transport here";
}

TEST_F(TransferTest, ALengthThatNoMemoryHasIsRefusedAtOnce) {
    Completion completion;
    Incarnation life;
    const Slice slice{
        .local = local.data(), .remote = reinterpret_cast<uint64_t>(remote.data()), .length = uint64_t{1} << 50, .completion = &completion};
    const auto section = world.sessions->section();
    const auto moved = run_transfer(world.core, world.session("peer"), life, Direction::kWrite, {&slice, 1}, completion,
                                    Deadline::after(10s), Clock::now());
    EXPECT_EQ(moved.error().code(), Code::kNotRegistered);
    EXPECT_EQ(world.script.submits, 0);
    auto batch = std::make_shared<Batch>(world.core, 1);
    const Block block{.local = slice.local, .remote = slice.remote, .length = slice.length};
    ASSERT_TRUE(batch->submit(*world.sessions->get("peer"), {}, Direction::kRead, {&block, 1}, nullptr, Deadline::after(10s)));
    EXPECT_EQ(batch->status().error.code(), Code::kNotRegistered);
}

TEST_F(TransferTest, NothingToMoveNeedsNoPeer) {
    world.script.on_connect = [] { return Result<>(fail(Code::kUnavailable, "nobody")); };
    Completion completion;
    Incarnation life;
    EXPECT_EQ(
        run_transfer(world.core, world.session("peer"), life, Direction::kRead, {}, completion, Deadline::after(1s), Clock::now()).value(),
        0u);
}

TEST(CheckBlocks, FindsNullAndWrappingAddresses) {
    std::byte byte{};
    EXPECT_TRUE(check_blocks(std::vector<Block>{{.local = &byte, .remote = 1, .length = 1}, {.local = nullptr, .remote = 0, .length = 0}}));
    EXPECT_FALSE(check_blocks(std::vector<Block>{{.local = nullptr, .remote = 1, .length = 1}}));
    EXPECT_FALSE(check_blocks(std::vector<Block>{{.local = &byte, .remote = 0, .length = 1}}));
    EXPECT_FALSE(check_blocks(std::vector<Block>{{.local = &byte, .remote = UINT64_MAX, .length = 2}}));
    EXPECT_FALSE(check_blocks(std::vector<Block>{{.local = &byte, .remote = 1, .length = UINT64_MAX}}));
}

}  // namespace
}  // namespace mooncake
