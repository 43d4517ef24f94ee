// SPDX-License-Identifier: Apache-2.0
#include "transport/copy_peer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <new>
#include <vector>

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

/// Notes how much it is given at one go.
class NotingPeer final : public CopyPeer {
public:
    NotingPeer(CopyPool& pool, MemoryKind remote) : CopyPeer(pool), remote_(remote) {}
    ~NotingPeer() override { stop(); }
    /// The longest chunk, in bytes.
    uint64_t longest(MemoryKind local, uint64_t length, size_t count) {
        std::byte byte{};
        const MemoryRegion region{.address = &byte, .length = uint64_t{1} << 50, .kind = local};
        Completion completion;
        completion.add(static_cast<uint32_t>(count));
        const std::vector<Slice> slices(
            count, {.local = &byte, .remote = 1 << 20, .length = length, .completion = &completion, .region = &region});
        longest_ = 0;
        submit(Direction::kWrite, slices, Submit::kWait);
        EXPECT_TRUE(completion.wait(Deadline::after(60s)));
        EXPECT_EQ(completion.result().value_or(0), length * count);
        return longest_.load();
    }

private:
    void copy(const CopyChunk& chunk, CopyFailures&) override {
        uint64_t bytes = chunk.length;
        for (const Slice& slice : chunk.slices) bytes += chunk.part() ? 0 : slice.length;
        uint64_t known = longest_.load();
        while (bytes > known && !longest_.compare_exchange_weak(known, bytes)) {}
    }
    MemoryKind remote_kind(Direction, const Slice&) const noexcept override { return remote_; }

    const MemoryKind remote_;
    std::atomic<uint64_t> longest_{0};
};

TEST(CopyPeer, WhatADeviceCopiesIsCutIntoLongerChunks) {
    constexpr MemoryKind kHost = MemoryKind::kHost, kCuda = MemoryKind::kCuda;
    constexpr uint64_t kMiB = 1 << 20;
    CopyPool pool("test");
    NotingPeer host(pool, kHost), device(pool, kCuda);
    EXPECT_EQ(host.longest(kHost, 1000 * kMiB, 1), kMiB);
    EXPECT_EQ(host.longest(kHost, 64 << 10, 128), kMiB);
    EXPECT_EQ(host.longest(kCuda, 1000 * kMiB, 1), 32 * kMiB);
    EXPECT_EQ(device.longest(kHost, 1000 * kMiB, 1), 32 * kMiB);
    EXPECT_EQ(device.longest(kCuda, 1000 * kMiB, 1), 256 * kMiB);
    EXPECT_EQ(host.longest(kCuda, 64 << 10, 128), 8 * kMiB) << "one call of the device";
    EXPECT_EQ(device.longest(kCuda, 512, 10'000), 512u * 4096);
}

}  // namespace
}  // namespace mooncake
