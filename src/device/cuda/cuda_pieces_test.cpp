// SPDX-License-Identifier: Apache-2.0
// Many small parts in one copy: by a kernel, by one call of the driver, or one by one.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "device/cuda/cuda_device.h"
#include "device/cuda/testing/fake_cuda.h"

namespace mooncake::cuda {
namespace {

using testing::FakeCuda;

std::vector<std::byte> noise(uint64_t length, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<std::byte> bytes(length);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    return bytes;
}

/// What the process holds of the driver now.
std::vector<uint64_t> holdings() {
    std::vector<uint64_t> held;
    for (const char* const what : {"live:streams", "live:events", "live:pinned", "live:contexts", "live:modules", "stack", "mode"})
        held.push_back(FakeCuda::count(what));
    return held;
}

class CudaPiecesTest : public ::testing::Test {
protected:
    static constexpr MemoryKind kHost = MemoryKind::kHost, kCuda = MemoryKind::kCuda;

    ~CudaPiecesTest() override {
        device.reset();
        EXPECT_EQ(holdings(), before) << "all is given back";
        for (const char* const wrong : {"contexts", "unrelaxed", "null_stream", "pageable"}) EXPECT_EQ(FakeCuda::count(wrong), 0u) << wrong;
    }
    void renew(FindLibrary find = find_loaded_library) {
        device.reset();
        device = std::make_unique<CudaDevice>(CudaOptions{}, std::move(find));
    }

    FakeCuda fake;
    const std::vector<uint64_t> before = holdings();
    std::unique_ptr<CudaDevice> device = std::make_unique<CudaDevice>(CudaOptions{});
};

TEST_F(CudaPiecesTest, ManyScatteredPartsArriveWholeByOneCallOrOneByOne) {
    constexpr uint64_t kPiece = 512, kApart = 700, kCount = 20'000, kBytes = kApart * kCount;
    std::byte* const card = fake.allocate(kBytes);
    auto* const pinned_memory = static_cast<std::byte*>(fake.allocate_pinned(kBytes));
    std::vector<std::byte> plain(kBytes);
    using Names = std::set<std::string>;
    for (const Names& missing : {Names{}, Names{"cuLaunchKernel"}, Names{"cuLaunchKernel", "cuMemcpyBatchAsync_v2"},
                                 Names{"cuLaunchKernel", "cuMemcpyBatchAsync_v2", "cuMemcpyBatchAsync"}}) {
        renew(FakeCuda::without(missing));
        for (std::byte* const host : {plain.data(), pinned_memory}) {
            const auto from = noise(kBytes, static_cast<uint32_t>(missing.size()));
            std::copy(from.begin(), from.end(), host);
            fake.write(card, std::vector<std::byte>(kBytes));
            std::vector<CopyPart> parts, back;
            for (uint64_t i = 0; i < kCount; ++i) {
                parts.push_back({card + (kCount - 1 - i) * kApart, host + i * kApart, kPiece});
                back.push_back({host + i * kApart, card + (kCount - 1 - i) * kApart, kPiece});
            }
            const uint64_t batches = FakeCuda::count("batches"), kernels = FakeCuda::count("kernels");
            ASSERT_TRUE(device->copy(kCuda, kHost, parts));
            EXPECT_EQ(FakeCuda::count("kernels") > kernels, missing.empty());
            EXPECT_EQ(FakeCuda::count("batches") > batches, missing.size() == 1 || missing.size() == 2);
            std::fill_n(host, kBytes, std::byte{0});
            ASSERT_TRUE(device->copy(kHost, kCuda, back));
            for (uint64_t i = 0; i < kCount; ++i)
                ASSERT_TRUE(std::equal(host + i * kApart, host + i * kApart + kPiece, from.begin() + static_cast<ptrdiff_t>(i * kApart)))
                    << i;
        }
    }
    EXPECT_LT(FakeCuda::count("calls:cuPointerGetAttributes"), 1000u) << "an allocation is asked for once in a call";
    fake.free(card);
    fake.free_pinned(pinned_memory);
}

TEST_F(CudaPiecesTest, ManyPiecesWithinAGpuAreCopiedByAKernelAndWithoutItOneByOne) {
    constexpr uint64_t kApart = 9000, kCount = 5000, kBytes = kApart * kCount;
    std::byte* const card = fake.allocate(kBytes);
    std::byte* const other = fake.allocate(kBytes);
    const auto from = noise(kBytes, 1);
    fake.write(card, from);
    std::vector<CopyPart> parts;
    std::vector<std::byte> expected(kBytes);
    for (uint64_t i = 0; i < kCount; ++i) {
        const uint64_t there = (kCount - 1 - i) * kApart + i % 7, here = i * kApart + i % 5, length = 1 + i * 37 % 8900;
        parts.push_back({other + there, card + here, length});
        std::copy_n(from.begin() + static_cast<ptrdiff_t>(here), length, expected.begin() + static_cast<ptrdiff_t>(there));
    }
    for (const bool kernel : {true, false}) {
        renew(kernel ? find_loaded_library : FakeCuda::without({"cuModuleLoadData"}));
        fake.write(other, std::vector<std::byte>(kBytes));
        const uint64_t kernels = FakeCuda::count("kernels"), copies = FakeCuda::count("calls:cuMemcpyAsync");
        ASSERT_TRUE(device->copy(kCuda, kCuda, parts));
        EXPECT_EQ(FakeCuda::count("kernels") - kernels, kernel ? 3 : 0);
        EXPECT_EQ(FakeCuda::count("calls:cuMemcpyAsync") - copies, kernel ? 0 : kCount);
        EXPECT_EQ(fake.read(other, kBytes), expected);
    }
    fake.free(card);
    fake.free(other);
}

TEST_F(CudaPiecesTest, AKernelThatCannotBeCompiledIsAskedForOnce) {
    constexpr abi::Status kNoCompiler = 221;
    std::byte* const card = fake.allocate(1 << 20);
    std::vector<CopyPart> parts;
    for (uint64_t i = 0; i < 50; ++i) parts.push_back({card + (512 << 10) + i * 2048, card + i * 2048, 1000});
    FakeCuda::fail("cuModuleLoadData", 1, kNoCompiler);
    for (int round = 0; round < 3; ++round) EXPECT_TRUE(device->copy(kCuda, kCuda, parts));
    EXPECT_EQ(FakeCuda::count("calls:cuModuleLoadData"), 1u);
    EXPECT_EQ(FakeCuda::count("kernels"), 0u);
    fake.free(card);
}

TEST_F(CudaPiecesTest, WhatOneLaunchMayNotDoIsCopiedOtherwise) {
    std::byte* const card = fake.allocate(1 << 20);
    const auto from = noise(512 << 10, 3);
    fake.write(card, from);
    std::vector<CopyPart> parts;
    for (uint64_t i = 0; i < 50; ++i) parts.push_back({card + (512 << 10) + i * 2048, card + i * 2048, 1000});
    FakeCuda::fail("cuLaunchKernel", 1, abi::kOutOfMemory);
    EXPECT_TRUE(device->copy(kCuda, kCuda, parts));
    EXPECT_EQ(FakeCuda::count("kernels"), 0u);
    EXPECT_EQ(fake.read(card + (512 << 10) + 49 * 2048, 1000), std::vector(from.begin() + 49 * 2048, from.begin() + 49 * 2048 + 1000));
    EXPECT_TRUE(device->copy(kCuda, kCuda, parts));
    EXPECT_EQ(FakeCuda::count("kernels"), 1u);
    fake.free(card);
}

TEST_F(CudaPiecesTest, AFaultAtAnyCallOfTheKernelLeavesNothingBehind) {
    constexpr uint64_t kCount = 6000, kApart = 64;
    std::byte* const card = fake.allocate(2 * kCount * kApart);
    std::vector<CopyPart> parts;
    for (uint64_t i = 0; i < kCount; ++i) parts.push_back({card + (kCount + i) * kApart, card + i * kApart, 32});
    int struck = 0;
    for (const std::string name : {"cuModuleLoadData", "cuModuleGetFunction", "cuLaunchKernel", "cuMemHostAlloc", "cuEventRecord",
                                   "cuEventQuery", "cuEventCreate", "cuStreamCreate"})
        for (const abi::Status status : {abi::kInvalidValue, abi::kOutOfMemory, 999})
            for (int nth = 1; nth <= 4; ++nth) {
                device.reset();
                FakeCuda::reset();
                renew();
                FakeCuda::fail(name.c_str(), nth, status);
                (void)device->copy(kCuda, kCuda, parts);
                EXPECT_FALSE(device->driver().dead(0));
                device.reset();
                if (FakeCuda::count("failed:" + name) == 0) break;
                ++struck;
                EXPECT_EQ(holdings(), before) << "call " << nth << " of " << name << " answers " << status;
            }
    EXPECT_GT(struck, 30);
    FakeCuda::reset();
    fake.free(card);
}

}  // namespace
}  // namespace mooncake::cuda
