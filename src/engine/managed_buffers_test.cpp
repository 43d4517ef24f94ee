// SPDX-License-Identifier: Apache-2.0
#include "engine/managed_buffers.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace mooncake {
namespace {

constexpr uint64_t kMiB = 1 << 20;

/// Address space that nobody touches.
struct FakeMemory {
    std::vector<uint64_t> asked;
    std::vector<void*> freed;
    uint64_t limit = UINT64_MAX;  // larger requests fail
    uint64_t next = 0x10'0000'0000;

    MemorySource source() {
        return {.allocate = [this](uint64_t length) -> Result<void*> {
                    asked.push_back(length);
                    if (length > limit) return fail(Code::kNoSpace, "no {} bytes", length);
                    next += length;
                    return reinterpret_cast<void*>(next - length);
                },
                .free = [this](void* address) -> Result<> {
                    freed.push_back(address);
                    return {};
                }};
    }
};

TEST(ManagedBuffers, TakeOneChunkForManyBuffers) {
    FakeMemory memory;
    ManagedBuffers buffers(memory.source(), 16 * kMiB);
    for (int i = 0; i < 16; ++i) EXPECT_TRUE(buffers.allocate(kMiB));
    EXPECT_EQ(memory.asked, std::vector<uint64_t>{16 * kMiB});
    EXPECT_TRUE(buffers.allocate(kMiB));
    EXPECT_EQ(memory.asked.size(), 2u);
}

TEST(ManagedBuffers, GiveTheLargestAllocationsTheirOwnMemory) {
    FakeMemory memory;
    ManagedBuffers buffers(memory.source(), 512 * kMiB);
    void* const large = *buffers.allocate(300 * kMiB);
    EXPECT_EQ(memory.asked, std::vector<uint64_t>{300 * kMiB});
    EXPECT_EQ(buffers.free(large, 299 * kMiB).error().code(), Code::kInvalidArgument);
    EXPECT_TRUE(buffers.free(large, 300 * kMiB));
    EXPECT_EQ(memory.freed, std::vector<void*>{large});
    EXPECT_EQ(buffers.free(large, 300 * kMiB).error().code(), Code::kNotRegistered);
}

TEST(ManagedBuffers, AreContentWithASmallerChunkWhereMemoryIsShort) {
    FakeMemory memory;
    memory.limit = 5 * kMiB;
    ManagedBuffers buffers(memory.source(), 16 * kMiB);
    EXPECT_TRUE(buffers.allocate(3 * kMiB));
    EXPECT_EQ(memory.asked, (std::vector<uint64_t>{16 * kMiB, 8 * kMiB, 4 * kMiB}));
    memory.limit = 0;
    EXPECT_EQ(buffers.allocate(3 * kMiB).error().code(), Code::kNoSpace);
}

TEST(ManagedBuffers, RefuseNonsense) {
    FakeMemory memory;
    ManagedBuffers buffers(memory.source(), kMiB);
    EXPECT_EQ(buffers.allocate(0).error().code(), Code::kInvalidArgument);
    EXPECT_EQ(buffers.free(nullptr, 1).error().code(), Code::kNotRegistered);
    memory.limit = 0;
    EXPECT_EQ(buffers.allocate(UINT64_MAX).error().code(), Code::kNoSpace);
}

TEST(ManagedBuffers, ServeManyThreads) {
    FakeMemory memory;
    ManagedBuffers buffers(memory.source(), 64 * kMiB);
    std::vector<std::jthread> threads;
    for (int t = 0; t < 8; ++t) {
        threads.emplace_back([&] {
            for (int i = 0; i < 500; ++i) {
                void* const buffer = *buffers.allocate(64 << 10);
                EXPECT_TRUE(buffers.free(buffer, 64 << 10));
            }
        });
    }
    threads.clear();
    EXPECT_EQ(memory.asked.size(), 1u);
}

}  // namespace
}  // namespace mooncake
