// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/host_pins.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <thread>

#include "base/shared_memory.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/testing/fake_cuda.h"

namespace mooncake::cuda {
namespace {

using testing::FakeCuda;

constexpr uint64_t kMiB = 1 << 20, kChunk = 2 * kMiB;

/// Shared memory as a client maps that of a node.
class HostPinsTest : public ::testing::Test {
protected:
    ~HostPinsTest() override {
        devices.reset();
        EXPECT_EQ(FakeCuda::count("pageable"), 0u) << "no GPU is given pageable memory";
        EXPECT_EQ(FakeCuda::count("contexts"), 0u);
        EXPECT_EQ(FakeCuda::count("unrelaxed"), 0u) << "a graph that others capture would break";
        EXPECT_EQ(FakeCuda::count("live:pinned"), pinned_before + lost_pins);
        fake.free(gpu);
    }

    void start(uint64_t pin_max = 64 * kMiB) {
        auto made = std::make_unique<CudaDevice>(CudaOptions{.pin_max = pin_max, .pin_chunk = kChunk});
        device = made.get();
        std::vector<std::unique_ptr<Device>> others;
        others.push_back(std::move(made));
        devices = std::make_unique<Devices>(std::move(others));
    }
    static Mapping map(uint64_t length, bool touch = true) {
        auto file = MemoryFile::create("pins", length);
        EXPECT_TRUE(file);
        auto mapping = file->map(true, length);
        EXPECT_TRUE(mapping);
        if (touch) std::memset(mapping->address(), 1, length);
        return std::move(*mapping);
    }
    Result<> to_host(std::byte* to, uint64_t length) {
        const CopyPart part{.to = to, .from = gpu, .length = length};
        return devices->copy(MemoryKind::kHost, MemoryKind::kCuda, {&part, 1});
    }
    Result<> to_gpu(const std::byte* from, uint64_t length) {
        const CopyPart part{.to = gpu, .from = from, .length = length};
        return devices->copy(MemoryKind::kCuda, MemoryKind::kHost, {&part, 1});
    }
    static bool eventually(const std::function<bool()>& condition) {
        const Deadline deadline = Deadline::after(20s);
        while (!condition()) {
            if (deadline.passed()) return false;
            std::this_thread::yield();
        }
        return true;
    }
    /// Uses it until so much is pinned.
    bool use_until(std::byte* at, uint64_t length, uint64_t bytes) {
        return eventually([&] { return to_host(at, length).has_value() && device->pinned_bytes() == bytes; });
    }

    FakeCuda fake;
    const uint64_t pinned_before = FakeCuda::count("live:pinned");
    uint64_t lost_pins = 0;
    std::byte* const gpu = fake.allocate(16 * kMiB);
    std::unique_ptr<Devices> devices;
    CudaDevice* device = nullptr;
};

TEST_F(HostPinsTest, WhatWasOfferedIsPinnedWhenAGpuUsesItAndGivenBackBeforeItGoes) {
    start();
    const Mapping memory = map(3 * kChunk + 4096);
    {
        const HostOffer offer(*devices, memory.address(), memory.length());
        EXPECT_EQ(device->pinned_bytes(), 0u) << "nobody has used it";
        ASSERT_TRUE(use_until(memory.address() + kChunk + 5, 100, kChunk)) << "the chunk that was used, and no other";
        EXPECT_EQ(FakeCuda::count("calls:cuMemHostRegister_v2"), 1u);
        ASSERT_TRUE(use_until(memory.address(), memory.length(), memory.length()));
        EXPECT_EQ(FakeCuda::count("calls:cuMemHostRegister_v2"), 4u);
    }
    EXPECT_EQ(device->pinned_bytes(), 0u);
    EXPECT_EQ(FakeCuda::count("calls:cuMemHostUnregister"), 4u);
}

TEST_F(HostPinsTest, PinnedMemoryIsCopiedDirectlyAndCutWhereAChunkEnds) {
    start();
    const Mapping memory = map(3 * kChunk);
    const HostOffer offer(*devices, memory.address(), memory.length());
    ASSERT_TRUE(use_until(memory.address(), memory.length(), memory.length()));

    std::vector<std::byte> value(2 * kChunk);
    for (size_t i = 0; i < value.size(); ++i) value[i] = static_cast<std::byte>(i * 7 + i / 255);
    fake.write(gpu, value);
    const uint64_t copies = FakeCuda::count("copies"), bytes = FakeCuda::count("bytes");
    std::byte* const at = memory.address() + kChunk / 2;
    ASSERT_TRUE(to_host(at, value.size()));
    EXPECT_EQ(std::memcmp(at, value.data(), value.size()), 0);
    EXPECT_EQ(FakeCuda::count("copies") - copies, 3u) << "one for each chunk that it touches";
    EXPECT_EQ(FakeCuda::count("bytes") - bytes, value.size());

    std::reverse(value.begin(), value.end());
    std::memcpy(at, value.data(), value.size());
    ASSERT_TRUE(to_gpu(at, value.size()));
    EXPECT_EQ(fake.read(gpu, value.size()), value);
}

TEST_F(HostPinsTest, ManySmallPiecesAcrossChunksGoTogether) {
    start();
    const Mapping memory = map(2 * kChunk);
    const HostOffer offer(*devices, memory.address(), memory.length());
    ASSERT_TRUE(use_until(memory.address(), memory.length(), memory.length()));
    constexpr uint64_t kPiece = 4000;  // some lie across the border
    std::vector<std::byte> value(2 * kChunk / kPiece * kPiece);
    for (size_t i = 0; i < value.size(); ++i) value[i] = static_cast<std::byte>(i * 3 + i / 251);
    fake.write(gpu, value);
    for (const bool adjacent : {true, false}) {
        std::memset(memory.address(), 0, memory.length());
        std::vector<CopyPart> parts;
        for (uint64_t at = 0; at < value.size(); at += kPiece)
            parts.push_back({.to = memory.address() + (adjacent ? at : value.size() - at - kPiece), .from = gpu + at, .length = kPiece});
        ASSERT_TRUE(devices->copy(MemoryKind::kHost, MemoryKind::kCuda, parts));
        for (const CopyPart& part : parts) ASSERT_EQ(std::memcmp(part.to, value.data() + (part.from - gpu), kPiece), 0);
    }
}

TEST_F(HostPinsTest, NoMoreIsPinnedThanTheQuotaAllows) {
    start(kChunk + 4096);
    const Mapping one = map(2 * kChunk), other = map(4096);
    HostOffer first(*devices, one.address(), one.length());
    const HostOffer second(*devices, other.address(), other.length());
    ASSERT_TRUE(use_until(one.address(), 100, kChunk));
    ASSERT_TRUE(use_until(one.address() + kChunk, 100, kChunk)) << "there is no room for it";
    ASSERT_TRUE(use_until(other.address(), 100, kChunk + 4096)) << "but for this there is";
    fake.write(gpu, std::vector<std::byte>(kChunk, std::byte{9}));
    ASSERT_TRUE(to_host(one.address() + kChunk / 2, kChunk)) << "half of it directly, half through buffers";
    EXPECT_TRUE(
        std::all_of(one.address() + kChunk / 2, one.address() + kChunk * 3 / 2, [](std::byte byte) { return byte == std::byte{9}; }));
    first.take_back();
    EXPECT_EQ(device->pinned_bytes(), 4096u);
}

TEST_F(HostPinsTest, NothingIsPinnedWithoutAQuota) {
    start(0);
    const Mapping memory = map(kChunk);
    const HostOffer offer(*devices, memory.address(), memory.length());
    for (int i = 0; i < 10; ++i) ASSERT_TRUE(to_host(memory.address(), kChunk));
    EXPECT_EQ(FakeCuda::count("calls:cuMemHostRegister_v2"), 0u);
}

TEST_F(HostPinsTest, MemoryThatWasNotOfferedIsLeftToItsOwner) {
    start();
    const Mapping memory = map(2 * kChunk), other = map(4096);
    const HostOffer offer(*devices, memory.address(), kChunk);
    ASSERT_TRUE(to_host(memory.address() + kChunk, kChunk));
    ASSERT_TRUE(to_host(other.address(), 4096));
    fake.pin(memory.address() + kChunk, kChunk);  // it would be refused if we had
    fake.pin(other.address(), 4096);
    ASSERT_TRUE(to_host(memory.address() + kChunk / 2, kChunk)) << "over the border of what is ours";
    fake.unpin(memory.address() + kChunk);
    fake.unpin(other.address());
}

TEST_F(HostPinsTest, NoPagesAreMadeForIt) {
    start();
    const Mapping memory = map(kChunk, false);
    const HostOffer offer(*devices, memory.address(), memory.length());
    std::vector<unsigned char> pages(kChunk / 4096);
    const auto present = [&] {
        EXPECT_EQ(::mincore(memory.address(), memory.length(), pages.data()), 0);
        return std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return (page & 1) != 0; });
    };
    const Deadline end = Deadline::after(2 * HostPins::kLookAgain);
    while (!end.passed()) ASSERT_TRUE(to_host(memory.address(), 4096));
    EXPECT_EQ(device->pinned_bytes(), 0u);
    EXPECT_EQ(present(), 1);
    std::memset(memory.address(), 1, memory.length());
    EXPECT_TRUE(use_until(memory.address(), 4096, kChunk)) << "once they are there";
}

TEST_F(HostPinsTest, WhatCudaRefusesGoesThroughBuffers) {
    start();
    const Mapping memory = map(2 * kChunk);
    fake.pin(memory.address(), 4096);  // somebody was faster
    const HostOffer offer(*devices, memory.address(), memory.length());
    ASSERT_TRUE(use_until(memory.address() + 8192, 2 * kChunk - 8192, kChunk)) << "the other chunk";
    EXPECT_EQ(FakeCuda::count("calls:cuMemHostRegister_v2"), 2u);
    for (int i = 0; i < 10; ++i) ASSERT_TRUE(to_host(memory.address(), 2 * kChunk));
    EXPECT_EQ(FakeCuda::count("calls:cuMemHostRegister_v2"), 2u) << "it is not asked again and again";
    fake.unpin(memory.address());
}

TEST_F(HostPinsTest, ADriverThatCannotPinIsNoTrouble) {
    auto made = std::make_unique<CudaDevice>(CudaOptions{}, FakeCuda::without({"cuMemHostRegister_v2"}));
    device = made.get();
    std::vector<std::unique_ptr<Device>> others;
    others.push_back(std::move(made));
    devices = std::make_unique<Devices>(std::move(others));
    const Mapping memory = map(4096);
    const HostOffer offer(*devices, memory.address(), memory.length());
    for (int i = 0; i < 10; ++i) ASSERT_TRUE(to_host(memory.address(), 4096));
    EXPECT_EQ(device->pinned_bytes(), 0u);
}

TEST_F(HostPinsTest, OffersComeAndGoWhileOthersAreUsed) {
    start();
    constexpr int kThreads = 4, kRounds = 40;
    std::vector<std::jthread> threads;
    std::atomic<int> wrong{0};
    for (int t = 0; t < kThreads; ++t)
        threads.emplace_back([&, t] {
            for (int round = 0; round < kRounds; ++round) {
                const Mapping memory = map(kChunk + 4096);
                const HostOffer offer(*devices, memory.address(), memory.length());
                std::vector<std::byte> got(64 << 10);
                for (int i = 0; i < 4; ++i) {
                    const CopyPart part{.to = memory.address() + kChunk - 4096, .from = gpu + t * kMiB, .length = 8192};
                    if (!devices->copy(MemoryKind::kHost, MemoryKind::kCuda, {&part, 1})) ++wrong;
                    if (memory.address()[kChunk] != std::byte{0}) ++wrong;
                }
            }
        });
    threads.clear();
    EXPECT_EQ(wrong.load(), 0);
    EXPECT_EQ(device->pinned_bytes(), 0u);
}

TEST_F(HostPinsTest, ALostGpuIsNotAskedToGiveItBack) {
    FakeCuda::reset();
    start();
    const Mapping memory = map(kChunk);
    HostOffer offer(*devices, memory.address(), memory.length());
    ASSERT_TRUE(use_until(memory.address(), 4096, kChunk));
    FakeCuda::poison(0, abi::kIllegalAddress);
    EXPECT_FALSE(to_host(memory.address(), 4096));
    offer.take_back();
    EXPECT_EQ(FakeCuda::count("calls:cuMemHostUnregister"), 0u);
    FakeCuda::reset();
    fake.unpin(memory.address());
    lost_pins = FakeCuda::count("live:pinned") - pinned_before;  // rings of the lost GPU
}

TEST_F(HostPinsTest, AForkedChildLeavesItAlone) {
    start();
    const Mapping memory = map(kChunk);
    HostOffer offer(*devices, memory.address(), memory.length());
    ASSERT_TRUE(use_until(memory.address(), 4096, kChunk));
    const pid_t child = ::fork();
    if (child == 0) {
        offer.take_back();
        const HostOffer own(*devices, memory.address(), memory.length());
        ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(device->pinned_bytes(), kChunk);
}

}  // namespace
}  // namespace mooncake::cuda
