// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/allocator.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>

#include "device/cuda/testing/fake_cuda.h"

namespace mooncake::cuda {
namespace {

using testing::FakeCuda;
constexpr uint64_t kMiB = 1 << 20;

class AllocatorTest : public ::testing::Test {
protected:
    AllocatorTest() { FakeCuda::attribute(0, abi::kDeviceFabric, 0); }
    ~AllocatorTest() override {
        FakeCuda::hold_streams(false);
        FakeCuda::hold_default_stream(false);
        EXPECT_EQ(FakeCuda::count("unrelaxed"), 0u) << "a graph that others capture would break";
        EXPECT_EQ(FakeCuda::count("null_stream"), 0u);
        EXPECT_EQ(FakeCuda::count("captured"), 0u);
        EXPECT_EQ(FakeCuda::count("after_end"), 0u);
        EXPECT_EQ(FakeCuda::count("stack"), 0u);
        FakeCuda::attribute(0, abi::kDeviceFabric, 0);
        if (lost) return;
        allocator->empty_cache(0);
        EXPECT_EQ(FakeCuda::count("live:bytes"), bytes) << "all memory is given back";
        EXPECT_EQ(FakeCuda::count("live:handles"), handles);
        EXPECT_EQ(FakeCuda::count("live:memory"), mappings);
        EXPECT_EQ(FakeCuda::count("live:reservations"), reservations);
        EXPECT_EQ(FakeCuda::count("live:events"), events);
    }

    void renew(uint64_t cache, FindLibrary find = load_library) {
        allocator->empty_cache(0);
        allocator = std::make_unique<Allocator>(cache, std::move(find));
    }
    static uint64_t handle_types(void* address) { return FakeCuda::handle_types(static_cast<std::byte*>(address)); }
    void free(void* address, abi::Stream stream = nullptr) { allocator->free(address, stream); }
    /// What was freed can be handed out again.
    void settle() { fake.drain(abi::legacy_stream()); }

    FakeCuda fake;
    const uint64_t bytes = FakeCuda::count("live:bytes"), handles = FakeCuda::count("live:handles");
    const uint64_t mappings = FakeCuda::count("live:memory"), reservations = FakeCuda::count("live:reservations");
    const uint64_t events = FakeCuda::count("live:events");
    bool lost = false;
    std::unique_ptr<Allocator> allocator = std::make_unique<Allocator>(64 * kMiB);
};

// ---- what a machine gives

TEST_F(AllocatorTest, SaysFabricOnlyAfterItHasMadeSome) {
    EXPECT_EQ(allocator->probe(0), Allocator::Backend::kMalloc);
    FakeCuda::attribute(0, abi::kDeviceFabric, 1);
    EXPECT_EQ(allocator->probe(0), Allocator::Backend::kFabric);
    FakeCuda::fail("cuMemCreate", 1, abi::kNotPermitted);  // the GPU can, but no channel is open to us
    EXPECT_EQ(allocator->probe(0), Allocator::Backend::kMalloc);
}

TEST_F(AllocatorTest, KnowsNothingOfGpusThatAreNotThere) {
    EXPECT_EQ(allocator->probe(17), Allocator::Backend::kUnknown);
    EXPECT_EQ(allocator->probe(-1), Allocator::Backend::kUnknown);
    FakeCuda::fail("cuInit", 1, abi::kNoDevice);
    EXPECT_EQ(allocator->probe(0), Allocator::Backend::kUnknown);
    Allocator without(0, []() -> std::optional<Lookup> { return std::nullopt; });
    EXPECT_EQ(without.probe(0), Allocator::Backend::kUnknown);
    EXPECT_EQ(without.allocate(kMiB, 0), nullptr);
    EXPECT_EQ(allocator->allocate(kMiB, 17), nullptr);
    EXPECT_EQ(allocator->allocate(kMiB, -1), nullptr);
    EXPECT_EQ(allocator->allocate(kMiB, 1000), nullptr);
    EXPECT_EQ(allocator->allocate(0, 0), nullptr);
    EXPECT_EQ(allocator->allocate(UINT64_MAX - 5, 0), nullptr);
}

TEST_F(AllocatorTest, GivesMemoryThatCanBeExportedByDescriptor) {
    void* const memory = allocator->allocate(20 * kMiB, 0);
    ASSERT_NE(memory, nullptr);
    EXPECT_EQ(handle_types(memory), uint64_t{abi::kHandleDescriptor});
    const std::vector<std::byte> text(100, std::byte{7});
    fake.write(static_cast<std::byte*>(memory) + 20 * kMiB - 100, text);
    EXPECT_EQ(fake.read(static_cast<std::byte*>(memory) + 20 * kMiB - 100, 100), text);
    free(memory);
}

TEST_F(AllocatorTest, GivesMemoryForOtherHostsWhereThatIsAllowed) {
    FakeCuda::attribute(0, abi::kDeviceFabric, 1);
    void* const memory = allocator->allocate(kMiB, 0);
    ASSERT_NE(memory, nullptr);
    EXPECT_EQ(handle_types(memory), uint64_t{abi::kHandleFabric | abi::kHandleDescriptor});
    free(memory);
}

TEST_F(AllocatorTest, TakesWhatIsAllowedAndAsksOnlyOnceForTheRest) {
    FakeCuda::attribute(0, abi::kDeviceFabric, 1);
    FakeCuda::fail("cuMemCreate", 1, abi::kNotPermitted);
    void* const first = allocator->allocate(kMiB, 0);
    EXPECT_EQ(handle_types(first), uint64_t{abi::kHandleDescriptor});
    const uint64_t calls = FakeCuda::count("calls:cuMemCreate");
    void* const second = allocator->allocate(kMiB, 0);
    EXPECT_EQ(FakeCuda::count("calls:cuMemCreate"), calls + 1);
    FakeCuda::fail("cuMemCreate", 1, abi::kNotSupported);
    void* const third = allocator->allocate(kMiB, 0);
    EXPECT_EQ(handle_types(third), 0u) << "that of cudaMalloc";
    EXPECT_EQ(FakeCuda::count("calls:cuMemAlloc_v2"), 1u);
    for (void* const memory : {first, second, third}) free(memory);
}

TEST_F(AllocatorTest, NeedsNoFunctionsForMappedMemory) {
    renew(0, FakeCuda::without({"cuMemSetAccess"}));
    void* const memory = allocator->allocate(kMiB, 0);
    EXPECT_EQ(handle_types(memory), 0u);
    free(memory);
    EXPECT_EQ(FakeCuda::count("calls:cuMemCreate"), 0u);
}

TEST_F(AllocatorTest, LetsThoseGpusAccessItThatCan) {
    FakeCuda::have_devices(2);
    FakeCuda both;
    free(allocator->allocate(kMiB, 0));
    EXPECT_EQ(FakeCuda::count("access:own"), 1u);
    EXPECT_EQ(FakeCuda::count("access:peer"), 1u);
    FakeCuda::fail("cuMemSetAccess", 2, abi::kPeerAccessUnsupported);
    void* const memory = allocator->allocate(kMiB * 8, 0);
    EXPECT_NE(memory, nullptr) << "one that cannot costs the others nothing";
    free(memory);
    FakeCuda::let_peers_reach(false);
    void* const alone = allocator->allocate(kMiB * 16, 0);
    EXPECT_NE(alone, nullptr);
    EXPECT_EQ(FakeCuda::count("access:peer"), 1u);
    free(alone);
    FakeCuda::let_peers_reach(true);
}

TEST_F(AllocatorTest, MakesAContextWhereNobodyHasOne) {
    FakeCuda::have_devices(2);
    // No FakeCuda has been made since, so that the second one has none yet, or has it from an earlier test.
    void* const memory = allocator->allocate(kMiB, 1);
    ASSERT_NE(memory, nullptr);
    free(memory);
    allocator->empty_cache(1);
}

// ---- what is kept

TEST_F(AllocatorTest, HandsOutAgainWhatWasFreed) {
    void* const first = allocator->allocate(20 * kMiB, 0);
    free(first);
    settle();
    EXPECT_EQ(allocator->cached_bytes(0), 20 * kMiB);
    EXPECT_EQ(allocator->allocate(18 * kMiB, 0), first) << "nearly as long";
    EXPECT_EQ(allocator->cached_bytes(0), 0u);
    free(first);
    settle();
    void* const shorter = allocator->allocate(8 * kMiB, 0);
    EXPECT_NE(shorter, first) << "the rest would be lost meanwhile";
    void* const longer = allocator->allocate(22 * kMiB, 0);
    EXPECT_NE(longer, first);
    free(shorter);
    free(longer);
}

TEST_F(AllocatorTest, KeepsNoMoreThanItIsTold) {
    std::vector<void*> all;
    for (int i = 0; i < 8; ++i) all.push_back(allocator->allocate(20 * kMiB, 0));
    for (void* const memory : all) free(memory);
    EXPECT_EQ(allocator->cached_bytes(0), 60 * kMiB);
    EXPECT_EQ(FakeCuda::count("live:bytes"), bytes + 60 * kMiB);
    settle();
    EXPECT_EQ(allocator->allocate(20 * kMiB, 0), all[5]) << "the oldest have gone";
    free(all[5]);
    renew(0);
    free(allocator->allocate(2 * kMiB, 0));
    EXPECT_EQ(FakeCuda::count("live:bytes"), bytes);
}

TEST_F(AllocatorTest, AThousandRoundsTakeNoMoreThanOne) {
    for (int i = 0; i < 1000; ++i) {
        void* const memory = allocator->allocate((1 + i % 9) * 2 * kMiB, 0);
        ASSERT_NE(memory, nullptr);
        free(memory);
        ASSERT_LE(FakeCuda::count("live:bytes"), bytes + 64 * kMiB);
    }
}

TEST_F(AllocatorTest, DoesNotHandOutWhatAStreamStillWorksOn) {
    const abi::Stream stream = fake.make_stream();
    void* const first = allocator->allocate(2 * kMiB, 0);
    FakeCuda::hold_streams(true);
    const std::vector<std::byte> text(64, std::byte{1});
    fake.write_on(stream, static_cast<std::byte*>(first), text);
    free(first, stream);
    void* const second = allocator->allocate(2 * kMiB, 0);
    EXPECT_NE(second, first);
    FakeCuda::hold_streams(false);
    fake.drain(stream);
    EXPECT_EQ(allocator->allocate(2 * kMiB, 0), first);
    free(first);
    free(second);
    fake.destroy_stream(stream);
}

TEST_F(AllocatorTest, UnmapsNothingThatAStreamStillWorksOn) {
    const abi::Stream stream = fake.make_stream();
    renew(0);
    void* const memory = allocator->allocate(2 * kMiB, 0);
    FakeCuda::hold_streams(true);
    const std::vector<std::byte> text(64, std::byte{1});
    fake.write_on(stream, static_cast<std::byte*>(memory), text);
    std::thread freeing([&] { allocator->free(memory, stream); });
    while (FakeCuda::count("calls:cuEventQuery") < 3) std::this_thread::yield();
    EXPECT_EQ(FakeCuda::count("live:bytes"), bytes + 2 * kMiB);
    FakeCuda::hold_streams(false);
    freeing.join();
    EXPECT_EQ(FakeCuda::count("live:bytes"), bytes);
    fake.drain(stream);  // an illegal address would be an error now
    fake.destroy_stream(stream);
}

TEST_F(AllocatorTest, GivesTheCacheBackBeforeItFails) {
    free(allocator->allocate(20 * kMiB, 0));
    FakeCuda::limit_memory(FakeCuda::count("live:bytes") + 4 * kMiB);
    void* const memory = allocator->allocate(22 * kMiB, 0);
    EXPECT_NE(memory, nullptr);
    EXPECT_EQ(handle_types(memory), uint64_t{abi::kHandleDescriptor}) << "what is short for a moment is no reason for worse memory";
    EXPECT_EQ(allocator->allocate(64 * kMiB, 0), nullptr);
    free(memory);
    void* const next = allocator->allocate(10 * kMiB, 0);
    EXPECT_EQ(handle_types(next), uint64_t{abi::kHandleDescriptor});
    free(next);
}

// ---- what goes wrong

TEST_F(AllocatorTest, LeavesAddressesOfOthersAlone) {
    std::byte* const other = fake.allocate(kMiB);
    int local = 0;
    free(other);
    free(&local);
    free(nullptr);
    void* const memory = allocator->allocate(kMiB, 0);
    free(static_cast<std::byte*>(memory) + 1);
    free(memory);
    free(memory);
    settle();
    EXPECT_EQ(allocator->allocate(kMiB, 0), memory);
    EXPECT_NE(allocator->allocate(kMiB, 0), memory) << "freed twice, there once";
    fake.free(other);
    lost = true;
}

TEST_F(AllocatorTest, WaitsForEverythingWhereAStreamCannotTell) {
    const abi::Stream stream = fake.make_stream();
    void* const memory = allocator->allocate(2 * kMiB, 0);
    fake.destroy_stream(stream);
    free(memory, stream);
    EXPECT_EQ(FakeCuda::count("calls:cuCtxSynchronize"), 1u);
    EXPECT_EQ(allocator->allocate(2 * kMiB, 0), memory);
    free(memory);
}

TEST_F(AllocatorTest, PutsNothingIntoAGraph) {
    const abi::Stream stream = fake.make_stream();
    void* const memory = allocator->allocate(2 * kMiB, 0);
    fake.capture_on(stream, true);
    free(memory, stream);
    fake.capture_on(stream, false);
    fake.destroy_stream(stream);
}

TEST_F(AllocatorTest, LosesMemoryRatherThanGiveItTwice) {
    void* const memory = allocator->allocate(2 * kMiB, 0);
    FakeCuda::capture(true);
    free(memory);  // neither an event nor waiting is possible now
    FakeCuda::capture(false);
    void* const next = allocator->allocate(2 * kMiB, 0);
    EXPECT_NE(next, memory);
    free(next);
    lost = true;
}

TEST_F(AllocatorTest, DoesNothingWhenTheDriverHasGone) {
    void* const memory = allocator->allocate(2 * kMiB, 0);
    FakeCuda::fail("*", 1, abi::kDeinitialized);
    free(memory);
    EXPECT_EQ(allocator->allocate(2 * kMiB, 0), nullptr);
    free(memory);
    lost = true;
}

TEST_F(AllocatorTest, DoesNothingInAChild) {
    void* const memory = allocator->allocate(2 * kMiB, 0);
    const pid_t child = ::fork();
    if (child == 0) {
        allocator->free(memory, nullptr);
        ::_exit(allocator->allocate(2 * kMiB, 0) == nullptr && FakeCuda::count("in_child") == 0 ? 0 : 1);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    free(memory);
}

TEST_F(AllocatorTest, BearsAFaultInEveryCallOfTheDriver) {
    FakeCuda::attribute(0, abi::kDeviceFabric, 1);
    for (const abi::Status status : {abi::kInvalidValue, abi::kOutOfMemory, abi::kNotPermitted, 999}) {
        for (int nth = 1; nth < 60; ++nth) {
            auto fresh = std::make_unique<Allocator>(8 * kMiB);
            FakeCuda::fail("*", nth, status);
            void* const first = fresh->allocate(2 * kMiB, 0);
            void* const second = fresh->allocate(6 * kMiB, 0);
            fresh->free(first, nullptr);
            fresh->free(second, nullptr);
            fresh->free(fresh->allocate(2 * kMiB, 0), nullptr);
            fresh->empty_cache(0);
            const bool kept = FakeCuda::count("failed:cuCtxPopCurrent_v2") != 0;
            ASSERT_EQ(FakeCuda::count("stack"), kept ? 1u : 0u) << "after fault " << nth << " of status " << status;
            FakeCuda::reset();
        }
    }
    lost = true;  // where a call failed that gives something back
}

TEST_F(AllocatorTest, AFaultWhileMemoryIsMadeLosesNothing) {
    FakeCuda::attribute(0, abi::kDeviceFabric, 1);
    const char* const calls[] = {"cuMemGetAllocationGranularity", "cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess",
                                 "cuDeviceGetAttribute",          "cuMemAlloc_v2"};
    for (const char* const call : calls) {
        for (int nth = 1; nth <= 3; ++nth) {
            auto fresh = std::make_unique<Allocator>(0);
            FakeCuda::fail(call, nth, 999);
            for (int i = 0; i < 3; ++i) {
                void* const memory = fresh->allocate(2 * kMiB, 0);
                EXPECT_NE(memory, nullptr) << call << " " << nth << ": there is another way";
                fresh->free(memory, nullptr);
            }
            EXPECT_EQ(FakeCuda::count("live:bytes"), bytes) << call;
            EXPECT_EQ(FakeCuda::count("live:handles"), handles) << call;
            EXPECT_EQ(FakeCuda::count("live:reservations"), reservations) << call;
            FakeCuda::reset();
        }
    }
}

TEST_F(AllocatorTest, ServesManyThreads) {
    const auto work = [&](int seed) {
        std::vector<void*> mine;
        for (int i = 0; i < 200; ++i) {
            void* const memory = allocator->allocate((1 + (i * seed) % 5) * 2 * kMiB, 0);
            ASSERT_NE(memory, nullptr);
            mine.push_back(memory);
            if (mine.size() < 4) continue;
            allocator->free(mine.front(), nullptr);
            mine.erase(mine.begin());
        }
        for (void* const memory : mine) allocator->free(memory, nullptr);
    };
    std::vector<std::thread> threads;
    for (int i = 1; i <= 4; ++i) threads.emplace_back(work, i);
    for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace mooncake::cuda
