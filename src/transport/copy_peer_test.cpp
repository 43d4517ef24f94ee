// SPDX-License-Identifier: Apache-2.0
#include "transport/copy_peer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <new>

namespace mooncake {
namespace {

/// Copies nothing: every chunk fails.
class FailingPeer final : public CopyPeer {
public:
    explicit FailingPeer(CopyPool& pool) : CopyPeer(pool) {}
    ~FailingPeer() override { stop(); }
    std::atomic<uint64_t> chunks{0};

private:
    void copy(const CopyChunk&, CopyFailures& failures) override {
        ++chunks;
        failures.emplace_back(0, Error(Code::kNotRegistered, "not there"));
    }
};

TEST(CopyPeer, OfALongSliceNothingIsBegunOnceAPartHasFailed) {
    CopyPool pool("test");
    FailingPeer peer(pool);
    std::byte byte{};
    for (const Submit how : {Submit::kWait, Submit::kLeave}) {
        Completion completion;
        completion.add(2);
        const Slice slices[] = {{.local = &byte, .remote = 1 << 20, .length = uint64_t{1} << 50, .completion = &completion},
                                {.local = &byte, .remote = 1 << 20, .length = uint64_t{1} << 50, .completion = &completion}};
        peer.submit(Direction::kWrite, slices, how);
        ASSERT_TRUE(completion.wait(Deadline::after(60s)));
        EXPECT_EQ(completion.result().error().code(), Code::kNotRegistered);
    }
    EXPECT_LT(peer.chunks, 1000u);
}

/// Finds no memory.
class ThrowingPeer final : public CopyPeer {
public:
    explicit ThrowingPeer(CopyPool& pool) : CopyPeer(pool) {}
    ~ThrowingPeer() override { stop(); }

private:
    void copy(const CopyChunk&, CopyFailures&) override { throw std::bad_alloc(); }
};

TEST(CopyPeer, WhatThrowsOnAThreadOfThePoolCostsTheTransfer) {
    CopyPool pool("test");
    ThrowingPeer peer(pool);
    std::byte byte{};
    Completion large, small;
    large.add(2);
    small.add(2);
    const Slice slices[] = {{.local = &byte, .remote = 1 << 20, .length = 5 << 20, .completion = &large},
                            {.local = &byte, .remote = 1 << 20, .length = 1, .completion = &small},
                            {.local = &byte, .remote = 1 << 20, .length = 5 << 20, .completion = &large},
                            {.local = &byte, .remote = 1 << 20, .length = 1, .completion = &small}};
    peer.submit(Direction::kWrite, slices, Submit::kLeave);
    for (Completion* const one : {&large, &small}) {
        ASSERT_TRUE(one->wait(Deadline::after(60s)));
        EXPECT_EQ(one->result().error().code(), Code::kUnavailable);
    }
}

}  // namespace
}  // namespace mooncake
