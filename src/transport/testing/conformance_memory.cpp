// SPDX-License-Identifier: Apache-2.0
// An allocation that fails costs the transfer that needed it: that ends, and when it has ended nothing of it moves any more.
#include <algorithm>
#include <new>
#include <vector>

#include "transport/testing/conformance.h"
#include "transport/testing/no_memory.h"

namespace mooncake::testing {

namespace {

constexpr int kEnough = 2000;  // no submission asks for memory as often

/// Several at once, so long that some of it goes in parts and short enough for many to be tried.
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
    for (uint64_t at = kLong + kApart; at + kShort <= whole.length && slices.size() < 100; at += kApart) add(at, kShort);
    completion.add(static_cast<uint32_t>(slices.size()));
    return slices;
}

}  // namespace

TEST_P(TransportKinds, ATransferThatFindsNoMemoryEndsAndMovesNoMore) {
    if (kCannotFailNew) GTEST_SKIP() << "not with this sanitizer";
    if (!carried()) GTEST_SKIP() << "not carried";
    const std::vector<std::byte> zeros(kBytes), ones(kBytes, std::byte{1});
    for (const Direction direction : {Direction::kWrite, Direction::kRead}) {
        KindMemory& source = direction == Direction::kWrite ? *local : *remote;
        KindMemory& destination = direction == Direction::kWrite ? *remote : *local;
        source.write(ones);
        for (const Submit how : {Submit::kWait, Submit::kLeave}) {
            ASSERT_TRUE(transfer(*peer, direction, slice(0, 0, kBytes), how));  // what is made once is there
            bool refused = true;
            for (int spared = 0; refused; ++spared) {
                ASSERT_LT(spared, kEnough);
                Completion completion;
                const std::vector<Slice> slices = all_of(slice(0, 0, kBytes), completion);
                destination.write(zeros);
                bool taken = true;
                {
                    const NoMemoryHere none(spared, 1);
                    try {
                        peer->submit(direction, slices, how);
                    } catch (const std::bad_alloc&) {
                        taken = false;  // then nothing of it
                    }
                    refused = NoMemoryHere::refused();
                }
                const bool ended = !taken || peer->wait(completion, patience());
                ASSERT_TRUE(ended) << "with " << spared << " allocations";
                const bool moved = taken && completion.result();
                const auto after = destination.read();
                if (!peer->usable()) peer = pair->connect();  // what a peer that broke has left at the target ends with that
                destination.write(zeros);
                // Behind it on the same way.
                const auto next = transfer(*peer, direction, slice(kBytes - 1, kBytes - 1, 1), how);
                ASSERT_TRUE(next) << "with " << spared << " allocations: " << next.error().to_string();
                auto expected = zeros;
                expected.back() = std::byte{1};
                ASSERT_EQ(destination.read(), expected) << "a byte landed later, with " << spared << " allocations";
                if (!moved) continue;
                for (const Slice& one : slices) {
                    const auto at = after.begin() + (one.local - local->data());
                    ASSERT_TRUE(
                        std::all_of(at, at + static_cast<ptrdiff_t>(one.length), [](std::byte byte) { return byte == std::byte{1}; }))
                        << "with " << spared << " allocations";
                }
            }
        }
    }
}

TEST_P(TransportKinds, WhereOtherThreadsFindNoMemoryATransferEndsAllTheSame) {
    if (kCannotFailNew) GTEST_SKIP() << "not with this sanitizer";
    if (!carried()) GTEST_SKIP() << "not carried";
    for (const Direction direction : {Direction::kWrite, Direction::kRead}) {
        for (const Submit how : {Submit::kWait, Submit::kLeave}) {
            ASSERT_TRUE(transfer(*peer, direction, slice(0, 0, kBytes), how));
            Completion completion;
            const std::vector<Slice> slices = all_of(slice(0, 0, kBytes), completion);
            {
                const NoMemory none;
                peer->submit(direction, slices, how);
                ASSERT_TRUE(peer->wait(completion, patience()));
            }
            if (!peer->usable()) peer = pair->connect();
        }
    }
    // With memory all is as before.
    const std::vector<std::byte> ones(kBytes, std::byte{1});
    local->write(ones);
    const auto moved = transfer(*peer, Direction::kWrite, slice(0, 0, kBytes));
    ASSERT_TRUE(moved) << moved.error().to_string();
    EXPECT_EQ(remote->read(), ones);
}

}  // namespace mooncake::testing
