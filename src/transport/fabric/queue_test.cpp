// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/queue.h"

#include <gtest/gtest.h>

#include <vector>

namespace mooncake::fabric {
namespace {

struct WorkQueueTest : ::testing::Test {
    Slice slice(Completion& completion, uint64_t remote, uint64_t length) {
        completion.add(1);
        return {.local = memory, .remote = remote, .length = length, .completion = &completion};
    }
    auto front() { return queue.batches().begin(); }

    std::byte memory[64];
    Endings endings;
    WorkQueue queue;
    const Error reason{Code::kCancelled, "enough"};
};

TEST_F(WorkQueueTest, ReportsASliceWithItsLastPiece) {
    Completion completion;
    const std::vector<Slice> slices{slice(completion, 100, 30)};
    queue.push(Direction::kWrite, slices);
    const Piece first = queue.begin(front(), 20);
    const Piece second = queue.begin(front(), 10);
    EXPECT_TRUE(queue.empty());
    EXPECT_EQ(second.remote, 120u);
    EXPECT_EQ(second.local, memory + 20);
    queue.finish(second, endings);
    EXPECT_TRUE(endings.empty());
    queue.finish(first, endings);
    endings.fire();
    EXPECT_EQ(completion.result().value_or(0), 30u);
    EXPECT_TRUE(queue.idle());
}

TEST_F(WorkQueueTest, AFailedPieceFailsItsSliceAndNoFurtherPieceBegins) {
    Completion bad, good;
    const std::vector<Slice> slices{slice(bad, 0, 30), slice(good, 0, 5)};
    queue.push(Direction::kRead, slices);
    const Piece first = queue.begin(front(), 10), second = queue.begin(front(), 10);
    queue.fail(first, reason, endings);
    EXPECT_EQ(front()->head().completion, &good);
    endings.fire();
    EXPECT_FALSE(bad.done());
    EXPECT_TRUE(second.given_up());
    queue.finish(second, endings);
    queue.finish(queue.begin(front(), 5), endings);
    endings.fire();
    EXPECT_EQ(bad.result().error().code(), Code::kCancelled);
    EXPECT_EQ(good.result().value_or(0), 5u);
}

TEST_F(WorkQueueTest, GivesUpOneCompletionWhereverItsSlicesStand) {
    Completion stopped, kept;
    // Begun in part; begun entirely; not begun; of another; not begun, at the end.
    const std::vector<Slice> first{slice(stopped, 0, 30), slice(kept, 0, 3), slice(stopped, 0, 4)};
    const std::vector<Slice> second{slice(stopped, 0, 10), slice(kept, 0, 7)};
    queue.push(Direction::kRead, second);
    const Piece whole = queue.begin(front(), 10);
    queue.push(Direction::kRead, first);
    const Piece part = queue.begin(std::next(front()), 10);

    queue.give_up(&stopped, reason, endings);
    endings.fire();

    EXPECT_EQ(stopped.pending(), 2u);
    queue.finish(whole, endings);
    queue.finish(part, endings);
    endings.fire();
    ASSERT_TRUE(stopped.done());
    EXPECT_EQ(stopped.result().error().code(), Code::kCancelled);
    while (!queue.empty()) queue.finish(queue.begin(front(), front()->head().length), endings);
    endings.fire();
    EXPECT_EQ(kept.result().value_or(0), 10u);
}

TEST_F(WorkQueueTest, GivesUpASliceOfWhichAllThatBeganIsOver) {
    Completion stopped;
    const std::vector<Slice> slices{slice(stopped, 0, 30)};
    queue.push(Direction::kRead, slices);
    queue.finish(queue.begin(front(), 10), endings);
    queue.give_up(&stopped, reason, endings);
    endings.fire();
    EXPECT_TRUE(stopped.done());
    EXPECT_TRUE(queue.idle());
}

TEST_F(WorkQueueTest, GivesUpEverything) {
    Completion one, two;
    const std::vector<Slice> slices{slice(one, 0, 30), slice(two, 0, 5), slice(one, 0, 5)};
    queue.push(Direction::kRead, slices);
    const Piece part = queue.begin(front(), 10);
    queue.give_up(&two, reason, endings);
    queue.give_up(nullptr, reason, endings);
    endings.fire();
    EXPECT_TRUE(two.done());
    EXPECT_EQ(one.pending(), 1u);
    queue.fail(part, Error(Code::kUnavailable, "later"), endings);
    endings.fire();
    EXPECT_EQ(one.result().error().code(), Code::kCancelled);
    EXPECT_TRUE(queue.idle());
}

TEST_F(WorkQueueTest, RefusesTheHead) {
    Completion bad, good;
    const std::vector<Slice> slices{slice(bad, 0, 8), slice(bad, 0, 8), slice(good, 0, 8)};
    queue.push(Direction::kRead, slices);
    queue.refuse(front(), reason, endings);
    const Piece part = queue.begin(front(), 4);
    queue.refuse(front(), reason, endings);
    endings.fire();
    EXPECT_EQ(bad.pending(), 1u);
    queue.finish(part, endings);
    queue.finish(queue.begin(front(), 8), endings);
    endings.fire();
    EXPECT_FALSE(bad.result());
    EXPECT_EQ(good.result().value_or(0), 8u);
}

}  // namespace
}  // namespace mooncake::fabric
