// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/closed_memories.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "transport/shm/channel.h"
#include "transport/testing/no_memory.h"

namespace mooncake::shm {
namespace {

class ShmClosedMemories : public ::testing::Test {
protected:
    ShmClosedMemories() {
        int ends[2] = {-1, -1};
        EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
        near.reset(ends[0]);
        far.reset(ends[1]);
    }
    /// Number and how many more.
    std::vector<std::pair<uint64_t, uint64_t>> heard() const {
        std::vector<std::pair<uint64_t, uint64_t>> all;
        for (;;) {
            const auto received = receive_message(far.get());
            if (!received) return all;
            EXPECT_EQ(received->message.kind, MessageKind::kMemoryClosed);
            all.emplace_back(received->message.value, received->message.address);
        }
    }

    UniqueFd near, far;
};

using Heard = std::vector<std::pair<uint64_t, uint64_t>>;

TEST_F(ShmClosedMemories, WhatWasPreparedIsAddedWithoutMemory) {
    if (mooncake::testing::kCannotFailNew) GTEST_SKIP() << "not with this sanitizer";
    ClosedMemories closed(true);
    auto prepared = ClosedMemories::prepare(3);
    {
        const mooncake::testing::NoMemoryHere none(0);
        closed.add(std::move(prepared));
    }
    closed.tell(near.get(), 0ms);
    EXPECT_EQ(heard(), (Heard{{3, 0}}));
}

TEST_F(ShmClosedMemories, NeighboursAreToldTogether) {
    ClosedMemories closed(true);
    for (const uint64_t number : {7, 3, 4, 5, 9, 10}) closed.add(number);
    closed.tell(near.get(), 0ms);
    EXPECT_EQ(heard(), (Heard{{3, 2}, {7, 0}, {9, 1}}));
    closed.tell(near.get(), 0ms);
    EXPECT_EQ(heard(), Heard());
}

TEST_F(ShmClosedMemories, AnOlderPeerIsToldOneByOne) {
    ClosedMemories closed(false);
    for (const uint64_t number : {3, 4, 5}) closed.add(number);
    closed.tell(near.get(), 0ms);
    EXPECT_EQ(heard(), (Heard{{3, 0}, {4, 0}, {5, 0}}));
}

TEST_F(ShmClosedMemories, WhatDoesNotFitIsToldLater) {
    constexpr uint64_t kMany = 20'000;
    ClosedMemories closed(true);
    for (uint64_t i = 0; i < kMany; ++i) closed.add(1 + 2 * i);
    closed.tell(near.get(), 0ms);
    Heard all = heard();
    EXPECT_LT(all.size(), kMany) << "more than a connection holds";
    while (all.size() < kMany) {
        closed.tell(near.get(), 0ms);
        const Heard more = heard();
        ASSERT_FALSE(more.empty());
        all.insert(all.end(), more.begin(), more.end());
    }
    for (uint64_t i = 0; i < kMany; ++i) ASSERT_EQ(all[i], (std::pair<uint64_t, uint64_t>(1 + 2 * i, 0)));
}

TEST_F(ShmClosedMemories, APeerThatIsGoneIsNotWaitedFor) {
    ClosedMemories closed(true);
    closed.add(1);
    far.reset();
    closed.tell(near.get(), Duration::max() / 2);
    closed.tell(near.get(), 0ms);
}

}  // namespace
}  // namespace mooncake::shm
