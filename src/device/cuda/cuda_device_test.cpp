// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/cuda_device.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <random>
#include <thread>

#include "device/cuda/copy_lane.h"
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

class CudaDeviceTest : public ::testing::Test {
protected:
    static constexpr MemoryKind kHost = MemoryKind::kHost, kCuda = MemoryKind::kCuda;
    static constexpr uint64_t kSlot = Lanes::kSlotBytes;

    ~CudaDeviceTest() override {
        device.reset();
        EXPECT_EQ(FakeCuda::count("contexts"), 0u) << "no context is of our making";
        EXPECT_EQ(FakeCuda::count("unrelaxed"), 0u) << "a graph that others capture would break";
        EXPECT_EQ(FakeCuda::count("null_stream"), 0u);
        EXPECT_EQ(FakeCuda::count("pageable"), 0u) << "no GPU is given pageable memory";
        EXPECT_EQ(FakeCuda::count("after_end"), 0u);
        EXPECT_EQ(FakeCuda::count("after_poison"), 0u) << "a lost device is not asked again";
        EXPECT_EQ(FakeCuda::count("captures_broken"), 0u);
        EXPECT_EQ(FakeCuda::count("stack"), 0u);
        if (lost) return;
        EXPECT_EQ(FakeCuda::count("live:streams"), streams);
        EXPECT_EQ(FakeCuda::count("live:events"), events);
        EXPECT_EQ(FakeCuda::count("live:pinned"), pinned) << "staging memory is given back";
        EXPECT_EQ(FakeCuda::count("live:modules"), modules);
        EXPECT_EQ(FakeCuda::count("live:contexts"), references);
    }

    Result<std::optional<MemoryInfo>> describe(const void* address, uint64_t length) { return device->describe(address, length); }
    Result<> copy(MemoryKind to_kind, std::byte* to, MemoryKind from_kind, const std::byte* from, uint64_t length) {
        const CopyPart part{to, from, length};
        return device->copy(to_kind, from_kind, {&part, 1});
    }
    void renew(FindLibrary find = find_loaded_library, CudaOptions options = {}) {
        device.reset();
        device = std::make_unique<CudaDevice>(options, std::move(find));
    }

    FakeCuda fake;
    const uint64_t streams = FakeCuda::count("live:streams"), events = FakeCuda::count("live:events");  // what others lost
    const uint64_t references = FakeCuda::count("live:contexts"), pinned = FakeCuda::count("live:pinned");
    const uint64_t modules = FakeCuda::count("live:modules");
    bool lost = false;  // what a lost device holds is not given back
    std::unique_ptr<CudaDevice> device = std::make_unique<CudaDevice>(CudaOptions{});
};

// ---- what memory is

TEST_F(CudaDeviceTest, KnowsNothingWhileNobodyHasLoadedLibcuda) {
    renew([]() -> std::optional<Lookup> { return std::nullopt; });
    std::byte* const memory = fake.allocate(4096);
    const auto info = describe(memory, 4096);
    ASSERT_TRUE(info);
    EXPECT_FALSE(*info);
    EXPECT_EQ(FakeCuda::count("calls"), 0u);
    fake.free(memory);
}

TEST_F(CudaDeviceTest, DescribesAnAllocationAndAPartOfIt) {
    std::byte* const memory = fake.allocate(1 << 20);
    const auto whole = describe(memory, 1 << 20), part = describe(memory + 1000, 5);
    for (const auto& info : {whole, part}) {
        ASSERT_TRUE(info && *info);
        EXPECT_EQ((*info)->kind, kCuda);
        EXPECT_EQ((*info)->device, 0);
        EXPECT_EQ((*info)->base, reinterpret_cast<uint64_t>(memory));
        EXPECT_EQ((*info)->length, 1u << 20);
        EXPECT_NE((*info)->allocation, 0u);
        EXPECT_TRUE((*info)->writable);
    }
    EXPECT_EQ((*whole)->allocation, (*part)->allocation);
    fake.free(memory);
}

TEST_F(CudaDeviceTest, LeavesHostMemoryToTheHost) {
    const std::byte plain{};
    void* const memory = fake.allocate_pinned(8192);
    for (const void* const address :
         {static_cast<const void*>(&plain), static_cast<const void*>(memory), static_cast<const void*>(nullptr)}) {
        const auto info = describe(address, 1);
        ASSERT_TRUE(info);
        EXPECT_FALSE(*info);
    }
    fake.free_pinned(memory);
}

TEST_F(CudaDeviceTest, RefusesARangeBeyondItsAllocation) {
    std::byte* const memory = fake.allocate(4096);
    const auto info = describe(memory + 100, 4096);
    ASSERT_FALSE(info);
    EXPECT_EQ(info.error().code(), Code::kInvalidArgument);
    fake.free(memory);
    const auto freed = describe(memory, 4096);
    ASSERT_TRUE(freed);
    EXPECT_FALSE(*freed) << "CUDA does not know it any more";
}

TEST_F(CudaDeviceTest, ARangeOverMappedChunksOfOneReservationIsOneMemory) {
    std::byte* const memory = fake.reserve(4, {0, 1, 2});
    const auto info = describe(memory + 100, 3 * FakeCuda::kChunkBytes - 100);
    ASSERT_TRUE(info && *info) << info.error().to_string();
    EXPECT_EQ((*info)->base, reinterpret_cast<uint64_t>(memory));
    EXPECT_EQ((*info)->length, 3 * FakeCuda::kChunkBytes);
    EXPECT_FALSE(describe(memory + 100, 3 * FakeCuda::kChunkBytes)) << "the fourth is not mapped";
    fake.release(memory, 4, {0, 1, 2});
}

TEST_F(CudaDeviceTest, AHoleBetweenChunksIsRefusedWithItsAddress) {
    std::byte* const memory = fake.reserve(3, {0, 2});
    const auto info = describe(memory, 3 * FakeCuda::kChunkBytes);
    ASSERT_FALSE(info);
    EXPECT_NE(info.error().message().find(format_text("{}", static_cast<void*>(memory + FakeCuda::kChunkBytes))), std::string::npos);
    fake.release(memory, 3, {0, 2});
}

TEST_F(CudaDeviceTest, PoolAndManagedMemoryAreOfTheGpu) {
    for (std::byte* const memory : {fake.allocate_from_pool(8192), fake.allocate_managed(8192)}) {
        const auto info = describe(memory + 10, 100);
        ASSERT_TRUE(info && *info);
        EXPECT_EQ((*info)->kind, kCuda);
        const auto bytes = noise(8192, 3);
        EXPECT_TRUE(copy(kCuda, memory, kHost, bytes.data(), 8192));
        std::vector<std::byte> back(8192);
        EXPECT_TRUE(copy(kHost, back.data(), kCuda, memory, 8192));
        EXPECT_EQ(back, bytes);
        fake.free(memory);
    }
}

TEST_F(CudaDeviceTest, AStubOrADriverThatNobodyInitialisedKnowsNothing) {
    std::byte* const memory = fake.allocate(4096);
    for (const abi::Status status : {abi::kStub, abi::kNotInitialized, abi::kNoDevice}) {
        FakeCuda::fail("cuPointerGetAttributes", 1, status);
        const auto info = describe(memory, 4096);
        ASSERT_TRUE(info) << status;
        EXPECT_FALSE(*info);
    }
    EXPECT_TRUE(describe(memory, 4096)->has_value());
    fake.free(memory);
}

// ---- copies

TEST_F(CudaDeviceTest, CopiesEveryLengthBetweenAllPlaces) {
    constexpr uint64_t kBytes = 40 << 20;
    std::byte* const card = fake.allocate(kBytes);
    std::byte* const other = fake.allocate(kBytes);
    auto* const pinned_memory = static_cast<std::byte*>(fake.allocate_pinned(kBytes));
    std::vector<std::byte> plain(kBytes);
    const auto from = noise(kBytes, 1);
    for (const uint64_t length :
         {uint64_t{1}, uint64_t{4095}, kSlot - 1, kSlot, 3 * kSlot + 7, 2 * CopyLane::kAcross.bytes + 1, kBytes - 64}) {
        SCOPED_TRACE(length);
        for (std::byte* const host : {plain.data(), pinned_memory}) {
            std::copy_n(from.begin(), length, host + 1);
            ASSERT_TRUE(copy(kCuda, card + 3, kHost, host + 1, length));
            ASSERT_TRUE(copy(kCuda, other + 5, kCuda, card + 3, length));
            std::fill_n(host, kBytes, std::byte{0});
            ASSERT_TRUE(copy(kHost, host + 7, kCuda, other + 5, length));
            EXPECT_TRUE(std::equal(from.begin(), from.begin() + static_cast<ptrdiff_t>(length), host + 7));
            EXPECT_EQ(host[6], std::byte{0});
            EXPECT_EQ(host[7 + length], std::byte{0});
        }
    }
    fake.free(card);
    fake.free(other);
    fake.free_pinned(pinned_memory);
}

TEST_F(CudaDeviceTest, LargeCopiesWithinAGpuAreFewUnits) {
    constexpr uint64_t kBytes = 64 << 20;
    std::byte* const card = fake.allocate(2 * kBytes);
    ASSERT_TRUE(copy(kCuda, card, kCuda, card + kBytes, kBytes));
    EXPECT_EQ(FakeCuda::count("copies"), 1u);
    fake.free(card);
}

TEST_F(CudaDeviceTest, NeighboursAreOneCopy) {
    std::byte* const card = fake.allocate(1 << 20);
    auto* const host = static_cast<std::byte*>(fake.allocate_pinned(1 << 20));
    std::vector<CopyPart> parts;
    for (uint64_t i = 0; i < 256; ++i) parts.push_back({card + i * 4096, host + i * 4096, 4096});
    ASSERT_TRUE(device->copy(kCuda, kHost, parts));
    EXPECT_EQ(FakeCuda::count("copies"), 1u);
    fake.free(card);
    fake.free_pinned(host);
}

TEST_F(CudaDeviceTest, ABatchThatTheDriverRefusesIsCopiedOneByOne) {
    std::byte* const card = fake.allocate(1 << 20);
    const auto from = noise(1 << 20, 9);
    std::vector<CopyPart> parts;
    for (uint64_t i = 0; i < 100; ++i) parts.push_back({card + i * 8192, from.data() + i * 8192, 4096});
    renew(FakeCuda::without({"cuModuleLoadData"}));
    FakeCuda::fail("cuMemcpyBatchAsync_v2", 1, abi::kNotSupported);
    ASSERT_TRUE(device->copy(kCuda, kHost, parts));
    ASSERT_TRUE(device->copy(kCuda, kHost, parts));
    EXPECT_EQ(FakeCuda::count("batches"), 0u) << "it is not tried again";
    EXPECT_EQ(fake.read(card + 99 * 8192, 4096), std::vector(from.begin() + 99 * 8192, from.begin() + 99 * 8192 + 4096));
    fake.free(card);
}

TEST_F(CudaDeviceTest, HostMemoryThatIsPinnedInPartIsCopied) {
    constexpr uint64_t kBytes = 1 << 20, kPage = 4096;
    std::byte* const card = fake.allocate(kBytes);
    auto* const host = static_cast<std::byte*>(::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    const auto from = noise(kBytes, 4);
    struct Range {
        uint64_t offset, length;
    };
    for (const auto& pinned_ranges :
         {std::vector<Range>{{0, kBytes / 2}}, {{kBytes / 2, kBytes / 2}}, {{kPage, kPage}}, {{0, kPage}, {kPage, kBytes - kPage}}}) {
        for (const Range& range : pinned_ranges) fake.pin(host + range.offset, range.length);
        std::copy(from.begin(), from.end(), host);
        EXPECT_TRUE(copy(kCuda, card, kHost, host, kBytes));
        std::fill_n(host, kBytes, std::byte{0});
        EXPECT_TRUE(copy(kHost, host, kCuda, card, kBytes));
        EXPECT_TRUE(std::equal(from.begin(), from.end(), host));
        for (const Range& range : pinned_ranges) fake.unpin(host + range.offset);
    }
    ::munmap(host, kBytes);
    fake.free(card);
}

TEST_F(CudaDeviceTest, PinnedMemoryIsCopiedDirectlyByAThreadThatNeverChoseAGpu) {
    std::byte* const card = fake.allocate(4096);
    auto* const host = static_cast<std::byte*>(fake.allocate_pinned(4096));
    std::jthread([&] {
        EXPECT_TRUE(copy(kCuda, card, kHost, host, 4096));
        EXPECT_TRUE(copy(kHost, host, kCuda, card, 4096));
    }).join();
    EXPECT_EQ(FakeCuda::count("calls:cuMemHostAlloc"), 0u) << "it went by way of buffers of ours";
    fake.free(card);
    fake.free_pinned(host);
}

TEST_F(CudaDeviceTest, CopiesAcrossTheChunksOfAReservation) {
    constexpr uint64_t kBytes = 3 * FakeCuda::kChunkBytes;
    std::byte* const card = fake.reserve(4, {0, 1, 2});
    const auto from = noise(kBytes, 5);
    EXPECT_TRUE(copy(kCuda, card, kHost, from.data(), kBytes));
    std::vector<std::byte> back(kBytes);
    EXPECT_TRUE(copy(kHost, back.data(), kCuda, card, kBytes));
    EXPECT_EQ(back, from);
    EXPECT_FALSE(copy(kHost, back.data(), kCuda, card + 100, kBytes)) << "its end is not mapped";
    fake.unmap(card, 1);
    EXPECT_FALSE(copy(kHost, back.data(), kCuda, card, kBytes)) << "a hole";
    EXPECT_TRUE(copy(kHost, back.data(), kCuda, card, FakeCuda::kChunkBytes)) << "the GPU is well";
    fake.release(card, 4, {0, 2});
}

TEST_F(CudaDeviceTest, MemoryThatWasFreedIsAnErrorAndNoFault) {
    std::byte* const card = fake.allocate(1 << 20);
    std::byte* const other = fake.allocate(1 << 20);
    ASSERT_TRUE(describe(card, 1 << 20)->has_value());
    fake.free(card);
    std::vector<std::byte> host(1 << 20);
    EXPECT_FALSE(copy(kHost, host.data(), kCuda, card, 1 << 20));
    EXPECT_FALSE(copy(kCuda, card, kHost, host.data(), 100));
    EXPECT_FALSE(copy(kCuda, card, kCuda, other, 100));
    EXPECT_FALSE(copy(kCuda, other, kCuda, card, 100));
    EXPECT_FALSE(copy(kHost, host.data(), kCuda, host.data() + 100, 100));
    EXPECT_TRUE(copy(kHost, host.data(), kCuda, other, 100)) << "the GPU is well";
    fake.free(other);
}

TEST_F(CudaDeviceTest, MemoryAtTheAddressOfFreedMemoryIsNotTakenForIt) {
    std::byte* const card = fake.allocate(1 << 20);
    std::vector<std::byte> host(4096);
    ASSERT_TRUE(describe(card + 4096, 4096)->has_value());
    ASSERT_TRUE(copy(kHost, host.data(), kCuda, card + 4096, 4096));
    FakeCuda::replace(card);
    const auto copied = copy(kHost, host.data(), kCuda, card + 4096, 4096);
    ASSERT_FALSE(copied);
    EXPECT_EQ(copied.error().code(), Code::kNotRegistered);
    ASSERT_TRUE(describe(card, 4096)->has_value());  // registered anew
    EXPECT_TRUE(copy(kHost, host.data(), kCuda, card + 4096, 4096));
    fake.free(card);
}

TEST_F(CudaDeviceTest, PartsThatMakeNoSenseAreRefused) {
    std::byte* const card = fake.allocate(8192);
    std::vector<std::byte> host(8192);
    EXPECT_TRUE(device->copy(kHost, kCuda, {}));
    EXPECT_TRUE(copy(kHost, host.data(), kCuda, card, 0));
    EXPECT_FALSE(copy(kHost, host.data(), kCuda, card, UINT64_MAX));
    EXPECT_FALSE(copy(kHost, host.data(), kCuda, card, 8193));
    EXPECT_FALSE(copy(kHost, host.data(), kCuda, nullptr, 1));
    EXPECT_FALSE(copy(kCuda, reinterpret_cast<std::byte*>(16), kHost, host.data(), 1));
    fake.free(card);
}

// ---- two GPUs

class CudaTwoDevicesTest : public ::testing::Test {
protected:
    static constexpr MemoryKind kHost = MemoryKind::kHost, kCuda = MemoryKind::kCuda;
    static constexpr uint64_t kBytes = 3'000'000;

    Result<> copy(MemoryKind to_kind, std::byte* to, MemoryKind from_kind, const std::byte* from) {
        const CopyPart part{to, from, kBytes};
        return device.copy(to_kind, from_kind, {&part, 1});
    }
    ~CudaTwoDevicesTest() override {
        FakeCuda::reset();
        for (const int i : {0, 1}) fake.free(cards[static_cast<size_t>(i)], i);
    }

    struct Two {
        Two() { FakeCuda::have_devices(2); }
    } two;
    FakeCuda fake;
    const std::array<std::byte*, 2> cards{fake.allocate(kBytes, 0), fake.allocate(kBytes, 1)};
    CudaDevice device{CudaOptions{}};
};

TEST_F(CudaTwoDevicesTest, MemoryBelongsToItsOwn) {
    for (const int i : {0, 1}) EXPECT_EQ(device.describe(cards[static_cast<size_t>(i)], kBytes).value().value().device, i);
    EXPECT_EQ(FakeCuda::count("contexts"), 0u);
}

TEST_F(CudaTwoDevicesTest, BytesMoveBetweenThem) {
    const auto from = noise(kBytes, 1);
    std::vector<std::byte> back(kBytes);
    ASSERT_TRUE(copy(kCuda, cards[1], kHost, from.data()));
    ASSERT_TRUE(copy(kCuda, cards[0], kCuda, cards[1]));
    ASSERT_TRUE(copy(kHost, back.data(), kCuda, cards[0]));
    EXPECT_EQ(back, from);
}

TEST_F(CudaTwoDevicesTest, OneCallMayNameBoth) {
    const auto from = noise(kBytes, 2);
    std::vector<std::byte> back(kBytes);
    std::vector<CopyPart> there, here;
    constexpr uint64_t kPiece = 10'000;
    for (uint64_t i = 0; i < kBytes / kPiece; ++i) {
        std::byte* const card = cards[i % 2] + i * kPiece;
        there.push_back({card, from.data() + i * kPiece, kPiece});
        here.push_back({back.data() + i * kPiece, card, kPiece});
    }
    ASSERT_TRUE(device.copy(kCuda, kHost, there));
    ASSERT_TRUE(device.copy(kHost, kCuda, here));
    EXPECT_EQ(back, from);
}

TEST_F(CudaTwoDevicesTest, TheOtherGoesOnWhenOneIsLost) {
    std::vector<std::byte> host(kBytes);
    ASSERT_TRUE(copy(kHost, host.data(), kCuda, cards[0]));
    ASSERT_TRUE(copy(kHost, host.data(), kCuda, cards[1]));
    FakeCuda::poison(1, abi::kIllegalAddress);
    EXPECT_FALSE(copy(kHost, host.data(), kCuda, cards[1]));
    const uint64_t failed = FakeCuda::count("after_poison");
    EXPECT_FALSE(copy(kCuda, cards[1], kHost, host.data()));
    EXPECT_EQ(FakeCuda::count("after_poison"), failed) << "it is not asked again";
    EXPECT_TRUE(copy(kHost, host.data(), kCuda, cards[0]));
    EXPECT_TRUE(device.describe(cards[0], kBytes)->has_value());
}

// ---- order

TEST_F(CudaDeviceTest, WhatIsOnTheDefaultStreamHappensBeforeMemoryIsRead) {
    std::byte* const card = fake.allocate(4096);
    const auto before = noise(4096, 1), after = noise(4096, 2);
    fake.write(card, before);
    FakeCuda::hold_default_stream(true);
    fake.write_later(card, after);
    std::vector<std::byte> host(4096);
    std::atomic<bool> done{false};
    std::jthread reader([&] {
        EXPECT_TRUE(copy(kHost, host.data(), kCuda, card, 4096));
        done = true;
    });
    while (FakeCuda::count("legacy_stream") == 0) std::this_thread::yield();
    EXPECT_FALSE(done.load());
    FakeCuda::hold_default_stream(false);
    reader.join();
    EXPECT_EQ(host, after);
    fake.free(card);
}

TEST_F(CudaDeviceTest, TheDefaultStreamIsNotWaitedForWhereTheCallerSaysSo) {
    renew(find_loaded_library, {.caller_sync = false});
    std::byte* const card = fake.allocate(4096);
    const auto before = noise(4096, 1), after = noise(4096, 2);
    fake.write(card, before);
    FakeCuda::hold_default_stream(true);
    fake.write_later(card, after);
    std::vector<std::byte> host(4096);
    EXPECT_TRUE(copy(kHost, host.data(), kCuda, card, 4096));
    EXPECT_EQ(host, before);
    EXPECT_EQ(FakeCuda::count("legacy_stream"), 0u);
    FakeCuda::hold_default_stream(false);
    (void)fake.read(card, 1);
    fake.free(card);
}

TEST_F(CudaDeviceTest, AGraphThatIsBeingCapturedIsWaitedForAndNotBroken) {
    std::byte* const card = fake.allocate(4096);
    FakeCuda::capture(true);
    std::vector<std::byte> host(4096);
    std::jthread reader([&] { EXPECT_TRUE(copy(kHost, host.data(), kCuda, card, 4096)); });
    while (FakeCuda::count("calls:cuStreamIsCapturing") < 3) std::this_thread::yield();
    FakeCuda::capture(false);
    reader.join();
    EXPECT_TRUE(copy(kCuda, card, kHost, host.data(), 4096)) << "writing needs no default stream";
    fake.free(card);
}

TEST_F(CudaDeviceTest, ThreadsCopyAtOnce) {
    constexpr uint64_t kBytes = 3 * kSlot + 11;
    std::vector<std::jthread> threads;
    std::vector<std::byte*> cards;
    for (int i = 0; i < 8; ++i) cards.push_back(fake.allocate(kBytes));
    for (int i = 0; i < 8; ++i)
        threads.emplace_back([&, i] {
            const auto from = noise(kBytes, static_cast<uint32_t>(i));
            std::vector<std::byte> back(kBytes);
            for (int round = 0; round < 3; ++round) {
                EXPECT_TRUE(copy(kCuda, cards[static_cast<size_t>(i)], kHost, from.data(), kBytes));
                EXPECT_TRUE(copy(kHost, back.data(), kCuda, cards[static_cast<size_t>(i)], kBytes));
                EXPECT_EQ(back, from);
            }
        });
    threads.clear();
    for (std::byte* const card : cards) fake.free(card);
}

// ---- faults

/// What the process holds of the driver now.
std::vector<uint64_t> holdings() {
    std::vector<uint64_t> held;
    for (const char* const what : {"live:streams", "live:events", "live:pinned", "live:contexts", "stack", "mode"})
        held.push_back(FakeCuda::count(what));
    return held;
}

TEST_F(CudaDeviceTest, AFaultAtAnyCallIsAnErrorAndLeavesNothingBehind) {
    constexpr uint64_t kBytes = 2 * kSlot + 100;
    std::byte* const card = fake.allocate(kBytes);
    auto* const pinned_memory = static_cast<std::byte*>(fake.allocate_pinned(kBytes));
    std::vector<std::byte> plain(kBytes);
    const std::set<std::string> giving_back{"cuStreamDestroy_v2",          "cuEventDestroy_v2",   "cuMemFreeHost",
                                            "cuCtxPopCurrent_v2",          "cuCtxPushCurrent_v2", "cuThreadExchangeStreamCaptureMode",
                                            "cuDevicePrimaryCtxRelease_v2"};
    std::vector<std::string> names{"cuDeviceGet",
                                   "cuDevicePrimaryCtxGetState",
                                   "cuDevicePrimaryCtxRetain",
                                   "cuPointerGetAttributes",
                                   "cuStreamCreate",
                                   "cuMemGetAddressRange_v2",
                                   "cuMemHostAlloc",
                                   "cuMemcpyAsync",
                                   "cuEventCreate",
                                   "cuEventRecord",
                                   "cuEventQuery",
                                   "cuStreamIsCapturing",
                                   "cuStreamQuery"};
    names.insert(names.end(), giving_back.begin(), giving_back.end());
    int struck = 0;
    for (const std::string& name : names)
        for (const abi::Status status : {abi::kInvalidValue, abi::kOutOfMemory, 999})
            for (std::byte* const host : {plain.data(), pinned_memory})
                for (const bool to_host : {true, false})
                    for (int nth = 1; nth <= 12; ++nth) {  // questions about an event may be many
                        device.reset();
                        FakeCuda::reset();
                        const auto before = holdings();
                        renew();
                        FakeCuda::fail(name.c_str(), nth, status);
                        (void)(to_host ? copy(kHost, host, kCuda, card, kBytes) : copy(kCuda, card, kHost, host, kBytes));
                        const bool dead = device->driver().dead(0);
                        device.reset();
                        if (FakeCuda::count("failed:" + name) == 0) break;  // there was no n-th call
                        ++struck;
                        EXPECT_FALSE(dead) << "an error that passes, at call " << nth << " of " << name;
                        if (giving_back.contains(name)) lost = true;
                        else EXPECT_EQ(holdings(), before) << "call " << nth << " of " << name << " answers " << status;
                    }
    EXPECT_GT(struck, 100);
    FakeCuda::reset();
    fake.free(card);
    fake.free_pinned(pinned_memory);
}

TEST_F(CudaDeviceTest, AFaultOfTheGpuItselfCostsTheDeviceAndNothingElse) {
    lost = true;
    std::byte* const card = fake.allocate(8 * kSlot);
    std::vector<std::byte> host(8 * kSlot);
    for (int nth = 1; nth <= 4; ++nth) {
        renew();
        FakeCuda::reset();
        FakeCuda::fail_async(nth, abi::kIllegalAddress);
        const auto copied = copy(kHost, host.data(), kCuda, card, 8 * kSlot);
        ASSERT_FALSE(copied) << nth;
        EXPECT_NE(copied.error().message().find("CUDA_ERROR_ILLEGAL_ADDRESS (700)"), std::string::npos) << copied.error().to_string();
        const uint64_t calls = FakeCuda::count("calls");
        EXPECT_FALSE(copy(kHost, host.data(), kCuda, card, 1));
        EXPECT_FALSE(describe(card, 1).value_or(std::nullopt).has_value());
        device.reset();
        EXPECT_EQ(FakeCuda::count("calls"), calls);
        EXPECT_EQ(FakeCuda::count("stack"), 0u);
    }
    FakeCuda::reset();
    fake.free(card);
}

TEST_F(CudaDeviceTest, HostMemoryIsLeftToTheHostAlsoWhenAGpuHasFailed) {
    lost = true;
    std::byte* const card = fake.allocate(4096);
    std::vector<std::byte> host(4096);
    for (const bool used : {false, true}) {
        renew();
        if (used) {
            ASSERT_TRUE(copy(kHost, host.data(), kCuda, card, 4096));
        }
        FakeCuda::fail("cuPointerGetAttributes", 1, abi::kIllegalAddress);
        const auto info = describe(host.data(), 4096);
        ASSERT_TRUE(info) << info.error().to_string();
        EXPECT_FALSE(*info);
        EXPECT_EQ(device->driver().dead(0), used) << "which GPU it was is known only where there is one";
    }
    renew();
    FakeCuda::fail("cuPointerGetAttributes", 1, abi::kIllegalAddress);
    const auto copied = copy(kCuda, card, kHost, host.data(), 4096);  // the target is looked up first
    ASSERT_FALSE(copied);
    EXPECT_EQ(copied.error().code(), Code::kUnavailable);
    FakeCuda::reset();
    fake.free(card);
}

TEST_F(CudaDeviceTest, ADriverThatGoesDownWithTheProcessIsLeftAlone) {
    lost = true;
    std::byte* const card = fake.allocate(4096);
    std::vector<std::byte> host(4096);
    for (int nth = 1; nth < 20; ++nth) {
        renew();
        FakeCuda::reset();
        FakeCuda::fail("*", nth, abi::kDeinitialized);
        (void)copy(kHost, host.data(), kCuda, card, 4096);
        (void)copy(kCuda, card, kHost, host.data(), 4096);
        device.reset();
        EXPECT_EQ(FakeCuda::count("after_end"), 0u) << nth;
    }
    FakeCuda::reset();
    fake.free(card);
}

}  // namespace
}  // namespace mooncake::cuda
