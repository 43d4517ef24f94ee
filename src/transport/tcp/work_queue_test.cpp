// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/work_queue.h"

#include <gtest/gtest.h>

#include "transport/tcp/policy.h"

namespace mooncake::tcp {
namespace {

class TcpWorkQueue : public ::testing::Test {
protected:
    Slice slice(size_t local, uint64_t remote, uint64_t length, Completion& completion) {
        completion.add(1);
        return {.local = memory_.data() + local, .remote = remote, .length = length, .completion = &completion};
    }
    std::vector<iovec> local_of(const Flight& flight) const {
        const auto rest = flight.direction == Direction::kWrite ? flight.out.payload().rest() : flight.local.rest();
        return {rest.begin(), rest.end()};
    }

    std::vector<std::byte> memory_ = std::vector<std::byte>(8 << 20);
    WorkQueue queue_;
    Flight flight_;
    FinishedList finished_;
    Completion a_, b_;
};

TEST_F(TcpWorkQueue, MergesWhatIsAdjacentOnEachSideByItself) {
    const Slice slices[] = {slice(0, 1000, 10, a_), slice(10, 5000, 10, a_), slice(100, 5010, 10, a_)};
    ASSERT_TRUE(queue_.push(Direction::kRead, slices));
    ASSERT_TRUE(queue_.pull(flight_, false, finished_));
    EXPECT_EQ(flight_.operations, 3u);
    EXPECT_EQ(flight_.bytes, 30u);
    EXPECT_EQ(local_of(flight_).size(), 2u);
    ASSERT_EQ(flight_.remote.size(), 2u);
    EXPECT_EQ(flight_.remote[1].address, 5000u);
    EXPECT_EQ(flight_.remote[1].length, 20u);
    EXPECT_FALSE(queue_.pull(flight_, false, finished_));
}

TEST_F(TcpWorkQueue, CutsALargeSliceIntoPartsThatNameTheWhole) {
    constexpr uint64_t kLength = 3 * kMessageBytes + 100;
    const Slice one = slice(0, 1 << 30, kLength, a_);
    ASSERT_TRUE(queue_.push(Direction::kWrite, {&one, 1}));
    uint64_t at = 0;
    uint32_t operations = 0;
    while (queue_.pull(flight_, false, finished_)) {
        ASSERT_TRUE(flight_.part);
        ASSERT_EQ(flight_.remote.size(), 2u);
        EXPECT_EQ(flight_.remote[0].address, uint64_t{1} << 30);
        EXPECT_EQ(flight_.remote[0].length, kLength);
        EXPECT_EQ(flight_.remote[1].address, (uint64_t{1} << 30) + at);
        EXPECT_EQ(flight_.remote[1].length, flight_.bytes);
        EXPECT_EQ(local_of(flight_).front().iov_base, memory_.data() + at);
        EXPECT_LE(flight_.bytes, kMessageBytes);
        EXPECT_GT(flight_.bytes, kMessageBytes / 2);  // no crumbs
        at += flight_.bytes;
        operations += flight_.operations;
    }
    EXPECT_EQ(at, kLength);
    EXPECT_EQ(a_.pending(), operations);  // each part is an operation of its own
}

TEST_F(TcpWorkQueue, NeverMixesCompletionsInOneMessage) {
    const Slice slices[] = {slice(0, 0, 10, a_), slice(10, 10, 10, b_), slice(20, 20, 10, a_)};
    ASSERT_TRUE(queue_.push(Direction::kRead, slices));
    for (const Completion* expected : {&a_, &b_, &a_}) {
        ASSERT_TRUE(queue_.pull(flight_, false, finished_));
        EXPECT_EQ(flight_.completion, expected);
        EXPECT_EQ(flight_.bytes, 10u);
    }
}

TEST_F(TcpWorkQueue, LimitsAMessageInBytesAndDescriptors) {
    std::vector<Slice> many;
    for (size_t i = 0; i < kDescriptorsMax + 1; ++i) many.push_back(slice(i * 32, i * 64, 16, a_));
    many.push_back(slice(0, 1 << 20, kMessageBytes - 100, a_));
    many.push_back(slice(0, 1 << 24, 200, a_));
    ASSERT_TRUE(queue_.push(Direction::kRead, many));
    std::vector<uint32_t> bytes;
    while (queue_.pull(flight_, false, finished_)) {
        EXPECT_LE(flight_.remote.size(), kDescriptorsMax);
        EXPECT_LE(flight_.bytes, kMessageBytes);
        bytes.push_back(flight_.bytes);
    }
    EXPECT_EQ(bytes, (std::vector<uint32_t>{kDescriptorsMax * 16, kMessageBytes - 100 + 16, 200}));
}

TEST_F(TcpWorkQueue, LetsASmallSubmissionPassALargeOne) {
    const Slice large = slice(0, 0, 6 * kMessageBytes, a_);
    const Slice small = slice(0, 0, 10, b_);
    ASSERT_TRUE(queue_.push(Direction::kWrite, {&large, 1}));
    ASSERT_TRUE(queue_.push(Direction::kRead, {&small, 1}));
    ASSERT_TRUE(queue_.pull(flight_, false, finished_));
    EXPECT_EQ(flight_.completion, &a_);
    ASSERT_TRUE(queue_.pull(flight_, false, finished_));
    EXPECT_EQ(flight_.completion, &b_);
    EXPECT_EQ(flight_.direction, Direction::kRead);
    ASSERT_TRUE(queue_.pull(flight_, false, finished_));
    EXPECT_EQ(flight_.completion, &a_);
    EXPECT_EQ(flight_.remote[1].address, kMessageBytes);
}

TEST_F(TcpWorkQueue, RemovesOneCompletionFromTheMiddleOfASubmission) {
    const Slice slices[] = {slice(0, 0, 2 * kMessageBytes, a_), slice(0, 100, 10, b_), slice(0, 200, 10, a_), slice(0, 300, 10, b_)};
    ASSERT_TRUE(queue_.push(Direction::kRead, slices));
    ASSERT_TRUE(queue_.pull(flight_, false, finished_));  // half of the first
    queue_.remove(a_, Error(Code::kCancelled, "cancelled"), finished_);
    finished_.deliver();
    EXPECT_EQ(a_.pending(), 1u) << "all but the half that was cut";
    std::vector<uint64_t> left;
    while (queue_.pull(flight_, false, finished_)) {
        EXPECT_EQ(flight_.completion, &b_);
        for (const AddressRange& range : flight_.remote) left.push_back(range.address);
    }
    EXPECT_EQ(left, (std::vector<uint64_t>{100, 300}));
    EXPECT_TRUE(queue_.empty());
}

TEST_F(TcpWorkQueue, RemovingAnotherCompletionKeepsAHalfCutSliceWhereItWas) {
    const Slice slices[] = {slice(0, 0, 2 * kMessageBytes, a_), slice(0, 100, 10, b_)};
    ASSERT_TRUE(queue_.push(Direction::kRead, slices));
    ASSERT_TRUE(queue_.pull(flight_, false, finished_));
    const uint64_t cut = flight_.bytes;
    queue_.remove(b_, Error(Code::kCancelled, "cancelled"), finished_);
    finished_.deliver();
    EXPECT_TRUE(b_.done());
    ASSERT_TRUE(queue_.pull(flight_, false, finished_));
    EXPECT_EQ(flight_.remote[1].address, cut);
    EXPECT_FALSE(queue_.pull(flight_, false, finished_));
}

TEST_F(TcpWorkQueue, RemovesAllPartsOfACompletion) {
    Completion whole;
    Completion one(&whole), two(&whole);
    whole.add(2);
    const Slice slices[] = {slice(0, 0, 10, one), slice(0, 100, 10, b_), slice(0, 200, 10, two), slice(0, 300, 10, two)};
    ASSERT_TRUE(queue_.push(Direction::kRead, slices));
    queue_.remove(whole, Error(Code::kCancelled, "cancelled"), finished_);
    finished_.deliver();
    EXPECT_TRUE(one.failed() && two.failed() && whole.done());
    ASSERT_TRUE(queue_.pull(flight_, false, finished_));
    EXPECT_EQ(flight_.completion, &b_);
    EXPECT_TRUE(queue_.empty());
}

TEST_F(TcpWorkQueue, CloseFailsWhatIsThereAndRefusesTheRest) {
    const Slice slices[] = {slice(0, 0, 10, a_), slice(0, 100, 10, b_), slice(0, 200, 10, a_)};
    ASSERT_TRUE(queue_.push(Direction::kRead, slices));
    FinishedList finished;
    queue_.close();
    EXPECT_FALSE(queue_.pull(flight_, false, finished_));
    const Verdict verdict{.error = Error(Code::kUnavailable, "gone"), .special = &b_, .reason = Error(Code::kCancelled, "asked for")};
    EXPECT_TRUE(queue_.fail_all(verdict, finished));
    EXPECT_FALSE(a_.done());
    finished.deliver();
    EXPECT_EQ(a_.result().error().code(), Code::kUnavailable);
    EXPECT_EQ(b_.result().error().code(), Code::kCancelled);
    EXPECT_FALSE(queue_.push(Direction::kRead, slices));
    EXPECT_FALSE(queue_.pull(flight_, false, finished_));
}

TEST_F(TcpWorkQueue, WhatIsLeftOfASliceWhosePartFailedIsNotCut) {
    const Slice slices[] = {slice(0, 1 << 30, uint64_t{1} << 50, a_), slice(0, 1000, 10, b_)};
    ASSERT_TRUE(queue_.push(Direction::kRead, {slices, 1}));
    ASSERT_TRUE(queue_.pull(flight_, false, finished_));
    ASSERT_TRUE(queue_.pull(flight_, false, finished_));
    ASSERT_TRUE(queue_.push(Direction::kRead, {slices + 1, 1}));
    a_.fail(Error(Code::kNotRegistered, "refused"), 2);
    ASSERT_TRUE(queue_.pull(flight_, false, finished_));
    EXPECT_EQ(flight_.completion, &b_);
    EXPECT_TRUE(queue_.empty());
    finished_.deliver();
    EXPECT_TRUE(a_.done());
    EXPECT_EQ(a_.result().error().code(), Code::kNotRegistered);
    b_.succeed(10);
}

TEST_F(TcpWorkQueue, AFlightIsBuiltAnewAsItWas) {
    const Slice slices[] = {slice(0, 1000, 10, a_), slice(100, 5000, 10, a_), slice(0, 1 << 30, 3 * kMessageBytes, b_)};
    ASSERT_TRUE(queue_.push(Direction::kWrite, slices));
    FinishedList none;
    while (queue_.pull(flight_, false, none)) {
        const auto places = local_of(flight_);
        const auto remote = flight_.remote;
        flight_.out.payload().consume(7);
        flight_.remote.clear();
        flight_.build(true);
        ASSERT_EQ(local_of(flight_).size(), places.size());
        for (size_t i = 0; i < places.size(); ++i) {
            EXPECT_EQ(local_of(flight_)[i].iov_base, places[i].iov_base);
            EXPECT_EQ(local_of(flight_)[i].iov_len, places[i].iov_len);
        }
        ASSERT_EQ(flight_.remote.size(), remote.size());
        for (size_t i = 0; i < remote.size(); ++i) EXPECT_EQ(flight_.remote[i].address, remote[i].address);
        EXPECT_EQ(flight_.out.left(), flight_.bytes + kTrailerBytes);
    }
}

}  // namespace
}  // namespace mooncake::tcp
