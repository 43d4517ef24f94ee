// SPDX-License-Identifier: Apache-2.0
// An allocation that fails costs the transfer that needed it: that ends, and when it has ended nothing of it moves any more.
#include <algorithm>
#include <climits>
#include <new>
#include <vector>

#include "transport/testing/conformance.h"
#include "transport/testing/no_memory.h"

namespace mooncake::testing {

namespace {

constexpr int kEnough = 2000;  // no call asks for memory as often

/// Several at once: one so long that it goes in parts, and short ones.
std::vector<Slice> all_of(const Slice& whole, Completion& completion) {
    constexpr uint64_t kLong = 2'500'000, kShort = 3000, kApart = 4096;
    std::vector<Slice> slices;
    const auto add = [&](uint64_t at, uint64_t length) {
        Slice part = whole;
        part.local += at;
        part.remote += at;
        part.length = length;
        part.completion = &completion;
        slices.push_back(part);
    };
    add(0, kLong);
    for (uint64_t at = kLong + kApart; at + kShort < whole.length && slices.size() < 100; at += kApart) add(at, kShort);
    completion.add(static_cast<uint32_t>(slices.size()));
    return slices;
}

bool all_ones(std::span<const std::byte> bytes) {
    return std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == std::byte{1}; });
}

}  // namespace

bool TransportKinds::survives_want_of_memory() {
    // A rail's thread and lock are everybody's, and its queues ask for memory with both in hand.
    return !kCannotFailNew && carried() && pair->initiator().transport().capabilities().name != "fabric";
}

void TransportKinds::expect_quiet(Direction direction, Submit how) {
    KindMemory& destination = direction == Direction::kWrite ? *remote : *local;
    if (!peer->usable()) peer = pair->connect();  // what a peer that broke has left at the target ends with that
    std::vector<std::byte> expected(kBytes);
    destination.write(expected);
    const auto next = transfer(*peer, direction, slice(kBytes - 1, kBytes - 1, 1), how);  // behind it on the same way
    ASSERT_TRUE(next) << next.error().to_string();
    expected.back() = std::byte{1};
    ASSERT_EQ(destination.read(), expected) << "a byte landed later";
}

TEST_P(TransportKinds, ATransferThatFindsNoMemoryEndsAndMovesNoMore) {
    if (!survives_want_of_memory()) GTEST_SKIP() << "not here";
    for (const Direction direction : {Direction::kWrite, Direction::kRead}) {
        KindMemory& source = direction == Direction::kWrite ? *local : *remote;
        KindMemory& destination = direction == Direction::kWrite ? *remote : *local;
        source.write(std::vector<std::byte>(kBytes, std::byte{1}));
        for (const Submit how : {Submit::kWait, Submit::kLeave}) {
            ASSERT_TRUE(transfer(*peer, direction, slice(0, 0, kBytes), how));  // what is made once is there
            bool refused = true;
            for (int spared = 0; refused; ++spared) {
                SCOPED_TRACE(spared);
                ASSERT_LT(spared, kEnough);
                Completion completion;
                const std::vector<Slice> slices = all_of(slice(0, 0, kBytes), completion);
                destination.write(std::vector<std::byte>(kBytes));
                {
                    const NoMemoryHere none(spared, 1);
                    submit_or_fail(*peer, direction, slices, how);
                    refused = NoMemoryHere::refused();
                }
                ASSERT_TRUE(peer->wait(completion, patience()));
                const auto after = destination.read();
                for (const Slice& one : slices)
                    if (completion.result()) {
                        ASSERT_TRUE(all_ones(std::span(after).subspan(static_cast<size_t>(one.local - local->data()), one.length)));
                    }
                ASSERT_NO_FATAL_FAILURE(expect_quiet(direction, how));
            }
        }
    }
}

TEST_P(TransportKinds, WhereOtherThreadsFindNoMemoryATransferEndsAllTheSame) {
    if (!survives_want_of_memory()) GTEST_SKIP() << "not here";
    for (const Direction direction : {Direction::kWrite, Direction::kRead}) {
        KindMemory& source = direction == Direction::kWrite ? *local : *remote;
        source.write(std::vector<std::byte>(kBytes, std::byte{1}));
        for (const Submit how : {Submit::kWait, Submit::kLeave}) {
            ASSERT_TRUE(transfer(*peer, direction, slice(0, 0, kBytes), how));
            Completion completion;
            const std::vector<Slice> slices = all_of(slice(0, 0, kBytes), completion);
            {
                const NoMemory none;
                submit_or_fail(*peer, direction, slices, how);
                ASSERT_TRUE(peer->wait(completion, patience()));
            }
            ASSERT_NO_FATAL_FAILURE(expect_quiet(direction, how));
        }
    }
}

}  // namespace mooncake::testing
