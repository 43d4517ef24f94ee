// SPDX-License-Identifier: Apache-2.0
#include "engine/memory_registry.h"

#include <gtest/gtest.h>

#include <ctime>
#include <thread>

#include "engine/testing/fake_transport.h"

namespace mooncake {
namespace {

class MemoryRegistryTest : public ::testing::Test {
protected:
    Result<> add(size_t offset, size_t length, bool remote = true) {
        return registry_.add({.address = at(offset), .length = length, .location = "cpu:0", .remote_accessible = remote});
    }
    Result<> add_read_only(size_t offset, size_t length) {
        return registry_.add({.address = at(offset), .length = length, .location = "cpu:0", .writable = false});
    }
    Result<> remove(size_t offset) { return registry_.remove(at(offset), Deadline::after(5s)); }
    std::byte* at(size_t offset) { return memory_.data() + offset; }
    bool peers_may(size_t offset, size_t length, Access access = Access::kRead) {
        return access_.covers({.address = reinterpret_cast<uint64_t>(at(offset)), .length = length}, access);
    }
    AddressRange range(size_t offset, size_t length) { return {.address = reinterpret_cast<uint64_t>(at(offset)), .length = length}; }

    testing::FakeScript script_;
    testing::FakeTransport transport_{script_};
    AccessTable access_;
    MemoryRegistry registry_{access_, {&transport_}};
    std::vector<std::byte> memory_ = std::vector<std::byte>(1 << 16);
};

TEST_F(MemoryRegistryTest, RefusesMemoryWithoutAddressOrBytes) {
    EXPECT_EQ(registry_.add({.address = nullptr, .length = 1}).error().code(), Code::kInvalidArgument);
    EXPECT_EQ(add(0, 0).error().code(), Code::kInvalidArgument);
    EXPECT_EQ(registry_.add({.address = at(0), .length = UINT64_MAX}).error().code(), Code::kInvalidArgument);
}

TEST_F(MemoryRegistryTest, RefusesRangesThatCrossARegisteredBorder) {
    ASSERT_TRUE(add(100, 100));
    EXPECT_EQ(add(50, 100).error().code(), Code::kOverlap);
    EXPECT_EQ(add(150, 100).error().code(), Code::kOverlap);
    EXPECT_EQ(add(50, 300).error().code(), Code::kOverlap);
    EXPECT_TRUE(add(200, 50)) << "a neighbour is fine";
    EXPECT_TRUE(add(50, 50));
}

TEST_F(MemoryRegistryTest, CountsExactDuplicates) {
    ASSERT_TRUE(add(0, 100));
    ASSERT_TRUE(add(0, 100));
    EXPECT_EQ(script_.registrations, 1);
    ASSERT_TRUE(remove(0));
    EXPECT_TRUE(peers_may(0, 100));
    ASSERT_TRUE(remove(0));
    EXPECT_FALSE(peers_may(0, 1));
    EXPECT_EQ(remove(0).error().code(), Code::kNotRegistered);
}

TEST_F(MemoryRegistryTest, InnerRangesOutliveTheOuterOne) {
    ASSERT_TRUE(add(0, 1000));
    ASSERT_TRUE(add(100, 50));
    ASSERT_TRUE(add(110, 10));
    ASSERT_TRUE(add(0, 20));
    ASSERT_TRUE(remove(0)) << "the narrowest range that starts there is the inner one";
    EXPECT_TRUE(peers_may(0, 1000));
    ASSERT_TRUE(remove(0));
    EXPECT_FALSE(peers_may(0, 1));
    EXPECT_TRUE(peers_may(100, 50));
    EXPECT_FALSE(peers_may(99, 2));
    EXPECT_FALSE(peers_may(149, 2));
    ASSERT_TRUE(remove(100));
    EXPECT_TRUE(peers_may(110, 10));
    ASSERT_TRUE(remove(110));
    EXPECT_FALSE(peers_may(110, 10));
    EXPECT_EQ(registry_.size(), 0u);
}

TEST_F(MemoryRegistryTest, RefusesInnerRangesThatCrossEachOther) {
    ASSERT_TRUE(add(0, 1000));
    ASSERT_TRUE(add(100, 100));
    EXPECT_EQ(add(150, 100).error().code(), Code::kOverlap) << "one of them would be lost when the outer range goes";
    EXPECT_EQ(add(50, 100).error().code(), Code::kOverlap);
    ASSERT_TRUE(add(200, 100)) << "a neighbour is fine";
    ASSERT_TRUE(add(100, 200)) << "as is one around both";
    EXPECT_EQ(add(150, 100).error().code(), Code::kOverlap);
    ASSERT_TRUE(remove(0));
    EXPECT_TRUE(peers_may(100, 200));
    EXPECT_EQ(registry_.size(), 1u);
    ASSERT_TRUE(remove(100)) << "the narrow one";
    ASSERT_TRUE(remove(100)) << "the one around both";
    EXPECT_FALSE(peers_may(100, 1));
    EXPECT_TRUE(peers_may(200, 100));
    ASSERT_TRUE(remove(200));
    EXPECT_EQ(registry_.size(), 0u);
}

TEST_F(MemoryRegistryTest, InnerRangesKeepTheirCountsWhenTheOuterOneGoes) {
    ASSERT_TRUE(add(0, 1000));
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(add(100, 50));
    ASSERT_TRUE(remove(0));
    for (int i = 0; i < 2; ++i) {
        ASSERT_TRUE(remove(100));
        EXPECT_TRUE(peers_may(100, 50));
    }
    ASSERT_TRUE(remove(100));
    EXPECT_FALSE(peers_may(100, 1));
}

TEST_F(MemoryRegistryTest, InnerRangesCanBeReachedWhileTheOuterOneGoes) {
    ASSERT_TRUE(add(0, 1000));
    ASSERT_TRUE(add(100, 50));
    int fences = 0;
    script_.on_revoke = [&] {
        ++fences;
        EXPECT_TRUE(peers_may(100, 50));
        EXPECT_FALSE(peers_may(99, 1));
        EXPECT_EQ(script_.registrations, 2) << "the transports know it before they forget the outer one";
        EXPECT_NE(registry_.find(at(100), 50), nullptr);
        return Result<>();
    };
    ASSERT_TRUE(remove(0));
    EXPECT_EQ(fences, 1);
    script_.on_revoke = nullptr;
}

TEST_F(MemoryRegistryTest, NothingChangesWhenAnInnerRangeCannotGoOnByItself) {
    ASSERT_TRUE(add(0, 1000));
    ASSERT_TRUE(add(100, 50));
    ASSERT_TRUE(add(200, 50));
    script_.on_register = [&] { return script_.registrations < 3 ? Result<>() : Result<>(fail(Code::kNoSpace, "the NIC is full")); };
    EXPECT_EQ(remove(0).error().code(), Code::kNoSpace);
    EXPECT_TRUE(peers_may(0, 1000));
    EXPECT_EQ(registry_.size(), 1u);
    script_.on_register = nullptr;
    ASSERT_TRUE(remove(0));
    EXPECT_TRUE(peers_may(200, 50));
}

TEST_F(MemoryRegistryTest, NestingHasABound) {
    Result<> added;
    size_t depth = 0;
    for (; added; ++depth) added = add(depth, 60'000 - 2 * depth);
    EXPECT_EQ(added.error().code(), Code::kNoSpace);
    EXPECT_EQ(depth, RegisteredRange::kDepthMax + 2u);
    ASSERT_TRUE(remove(0));
    EXPECT_FALSE(peers_may(0, 1));
    EXPECT_TRUE(peers_may(1, 59'998));
}

TEST_F(MemoryRegistryTest, MemoryForReadingOnlyStaysSoForWhatIsInsideIt) {
    ASSERT_TRUE(add_read_only(0, 1000));
    EXPECT_TRUE(peers_may(0, 1000));
    EXPECT_FALSE(peers_may(0, 1, Access::kWrite));
    EXPECT_EQ(add(100, 50).error().code(), Code::kOverlap);
    EXPECT_EQ(add(0, 1000).error().code(), Code::kOverlap);
    ASSERT_TRUE(add_read_only(100, 50));
    ASSERT_TRUE(remove(0));
    EXPECT_TRUE(peers_may(100, 50));
    EXPECT_FALSE(peers_may(100, 50, Access::kWrite));

    ASSERT_TRUE(add(2000, 1000));
    ASSERT_TRUE(add_read_only(2100, 50)) << "whoever registered more may have meant it";
    EXPECT_TRUE(peers_may(2100, 50, Access::kWrite));
    ASSERT_TRUE(remove(2000));
    EXPECT_FALSE(peers_may(2100, 50, Access::kWrite));
}

TEST_F(MemoryRegistryTest, RemoveWithinTakesEverythingBackHoweverOftenItWasRegistered) {
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(add(1000, 1000));
    ASSERT_TRUE(add(1000, 20));
    ASSERT_TRUE(add(1500, 20));
    ASSERT_TRUE(add(2000, 100));
    ASSERT_TRUE(add(900, 100));
    ASSERT_TRUE(registry_.remove_within(range(1000, 1000), Deadline::after(5s)));
    EXPECT_FALSE(peers_may(1000, 1));
    EXPECT_FALSE(peers_may(1500, 1));
    EXPECT_TRUE(peers_may(2000, 100));
    EXPECT_TRUE(peers_may(900, 100));
    EXPECT_EQ(registry_.size(), 2u);
    EXPECT_EQ(remove(1000).error().code(), Code::kNotRegistered);
    EXPECT_TRUE(registry_.remove_within(range(1000, 1000), Deadline::after(5s))) << "nothing is left to take";
    EXPECT_EQ(registry_.remove_within(range(950, 1000), Deadline::after(5s)).error().code(), Code::kOverlap);
    EXPECT_EQ(registry_.remove_within(range(1950, 100), Deadline::after(5s)).error().code(), Code::kOverlap);
    EXPECT_TRUE(peers_may(900, 100));
    EXPECT_TRUE(peers_may(2000, 100));
}

TEST_F(MemoryRegistryTest, RemoveWithinCanBeRepeatedAfterABusyFence) {
    ASSERT_TRUE(add(0, 100));
    ASSERT_TRUE(add(100, 100));
    script_.on_revoke = [] { return Result<>(fail(Code::kBusy, "stopped peer")); };
    EXPECT_EQ(registry_.remove_within(range(0, 200), Deadline::after(5s)).error().code(), Code::kBusy);
    EXPECT_FALSE(peers_may(0, 1));
    EXPECT_FALSE(peers_may(100, 1));
    script_.on_revoke = nullptr;
    EXPECT_TRUE(registry_.remove_within(range(0, 200), Deadline::after(5s)));
    EXPECT_TRUE(add(0, 200));
}

TEST_F(MemoryRegistryTest, BuffersAreListedInOrderOfRegistration) {
    ASSERT_TRUE(add(5000, 100));
    ASSERT_TRUE(add(100, 100));
    ASSERT_TRUE(add(3000, 1000));
    ASSERT_TRUE(add(3100, 100));
    ASSERT_TRUE(add(2000, 100));
    const auto listed = [&] {
        std::vector<size_t> offsets;
        for (const BufferRecord& record : registry_.buffers(SIZE_MAX)) offsets.push_back(record.address - range(0, 1).address);
        return offsets;
    };
    EXPECT_EQ(listed(), (std::vector<size_t>{5000, 100, 3000, 2000}));
    ASSERT_EQ(registry_.buffers(1).size(), 1u);
    EXPECT_EQ(registry_.buffers(1)[0].address, range(5000, 1).address);
    const uint64_t listing = registry_.listing();
    ASSERT_TRUE(remove(5000));
    ASSERT_TRUE(remove(3000)) << "the one inside was registered before 2000";
    EXPECT_EQ(listed(), (std::vector<size_t>{100, 3100, 2000}));
    EXPECT_GT(registry_.listing(), listing);
}

TEST_F(MemoryRegistryTest, MemoryOfDevicesIsListedApartWithNeighboursAsOne) {
    const auto add_device = [&](size_t offset, uint64_t length, MemoryKind kind, int device, bool remote = true) {
        return registry_.add({.address = at(offset), .length = length, .kind = kind, .device = device, .remote_accessible = remote});
    };
    ASSERT_TRUE(add(0, 100));
    EXPECT_FALSE(registry_.has_device_memory());
    EXPECT_TRUE(registry_.device_memory(10).empty());
    ASSERT_TRUE(add_device(200, 100, MemoryKind::kCuda, 1));
    ASSERT_TRUE(add_device(100, 100, MemoryKind::kCuda, 1));
    ASSERT_TRUE(add_device(300, 100, MemoryKind::kCuda, 2));
    ASSERT_TRUE(add_device(400, 100, MemoryKind::kAscend, 2));
    ASSERT_TRUE(add_device(500, 100, MemoryKind::kAscend, 2, false));
    const uint64_t base = range(0, 1).address;
    const std::vector<DeviceRange> all = {
        {base + 100, 200, MemoryKind::kCuda, 1}, {base + 300, 100, MemoryKind::kCuda, 2}, {base + 400, 100, MemoryKind::kAscend, 2}};
    EXPECT_EQ(registry_.device_memory(10), all);
    EXPECT_EQ(registry_.device_memory(1), std::vector<DeviceRange>{all[0]});
    for (const size_t offset : {100, 200, 300, 400}) ASSERT_TRUE(remove(offset));
    EXPECT_TRUE(registry_.device_memory(10).empty());
    EXPECT_TRUE(registry_.has_device_memory()) << "that of ours alone";
    ASSERT_TRUE(remove(500));
    EXPECT_FALSE(registry_.has_device_memory());
}

TEST_F(MemoryRegistryTest, ABlockOverTwoRegistrationsOfADeviceIsASliceOfEach) {
    for (const size_t offset : {0, 100, 200})
        ASSERT_TRUE(registry_.add({.address = at(offset), .length = 100, .kind = MemoryKind::kCuda, .device = 0}));
    const std::vector<Block> blocks = {{.local = at(50), .remote = 5000, .length = 230}, {.local = at(280), .remote = 9000, .length = 20}};
    std::vector<Slice> slices;
    Completion completion;
    EXPECT_EQ(registry_.resolve(blocks, &completion, slices), 4u);
    ASSERT_EQ(slices.size(), 4u);
    const uint64_t lengths[] = {50, 100, 80, 20}, remotes[] = {5000, 5050, 5150, 9000};
    for (size_t i = 0; i < 4; ++i) {
        EXPECT_EQ(slices[i].length, lengths[i]);
        EXPECT_EQ(slices[i].remote, remotes[i]);
        EXPECT_EQ(slices[i].completion, &completion);
        ASSERT_NE(slices[i].region, nullptr);
        EXPECT_EQ(slices[i].region->kind, MemoryKind::kCuda);
    }
}

TEST_F(MemoryRegistryTest, CloseTakesEverythingBackForGood) {
    ASSERT_TRUE(add(0, 100));
    ASSERT_TRUE(add(200, 100));
    script_.on_stop_serving = [] { return Result<>(fail(Code::kBusy, "stopped peer")); };
    EXPECT_EQ(registry_.close(Deadline::after(5s)).error().code(), Code::kBusy);
    EXPECT_FALSE(peers_may(0, 1));
    script_.on_stop_serving = nullptr;
    ASSERT_TRUE(registry_.close(Deadline::after(5s)));
    EXPECT_EQ(registry_.size(), 0u);
    EXPECT_EQ(add(0, 100).error().code(), Code::kUnavailable);
    EXPECT_FALSE(peers_may(0, 1));
    EXPECT_TRUE(registry_.close(Deadline::after(5s)));
}

TEST_F(MemoryRegistryTest, UnknownAddressesAreNotRegistered) {
    ASSERT_TRUE(add(100, 100));
    EXPECT_EQ(remove(0).error().code(), Code::kNotRegistered);
    EXPECT_EQ(remove(150).error().code(), Code::kNotRegistered);
    EXPECT_EQ(remove(200).error().code(), Code::kNotRegistered);
}

TEST_F(MemoryRegistryTest, MemoryThatIsNotRemoteAccessibleStaysHidden) {
    ASSERT_TRUE(add(0, 100, false));
    EXPECT_FALSE(peers_may(0, 100));
    EXPECT_EQ(script_.registrations, 0);
    EXPECT_NE(registry_.find(at(0), 100), nullptr);
    EXPECT_TRUE(registry_.buffers(10).empty());
}

TEST_F(MemoryRegistryTest, ABusyFenceKeepsTheRangeForbiddenAndTaken) {
    ASSERT_TRUE(add(0, 100));
    script_.on_revoke = [] { return Result<>(fail(Code::kBusy, "stopped peer")); };
    EXPECT_EQ(remove(0).error().code(), Code::kBusy);
    EXPECT_FALSE(peers_may(0, 1));
    EXPECT_EQ(registry_.find(at(0), 1), nullptr);
    EXPECT_EQ(add(0, 100).error().code(), Code::kOverlap) << "the memory must not be lent again before the fence";
    script_.on_revoke = nullptr;
    EXPECT_TRUE(remove(0));
    EXPECT_TRUE(add(0, 100));
}

TEST_F(MemoryRegistryTest, FindsAcrossNeighboursOnly) {
    ASSERT_TRUE(add(0, 100));
    ASSERT_TRUE(add(100, 100));
    ASSERT_TRUE(add(300, 100));
    EXPECT_NE(registry_.find(at(50), 100), nullptr);
    EXPECT_EQ(registry_.find(at(150), 100), nullptr);
    EXPECT_EQ(registry_.find(at(250), 10), nullptr);
    EXPECT_NE(registry_.find(at(399), 1), nullptr);
    EXPECT_EQ(registry_.find(at(399), 2), nullptr);
}

TEST_F(MemoryRegistryTest, ResolveMergesWhatContinuesOnBothSides) {
    ASSERT_TRUE(add(0, 1000));
    Completion completion;
    std::vector<Slice> slices;
    const std::vector<Block> blocks = {
        {.local = at(0), .remote = 5000, .length = 10},  {.local = at(10), .remote = 5010, .length = 10},  // one
        {.local = at(20), .remote = 9000, .length = 10},                                                   // gap on the remote side
        {.local = at(30), .remote = 9010, .length = 0},                                                    // nothing
        {.local = at(2000), .remote = 1, .length = 5},                                                     // not registered
    };
    ASSERT_EQ(registry_.resolve(blocks, &completion, slices), 3u);
    EXPECT_EQ(slices[0].length, 20u);
    EXPECT_NE(slices[1].region, nullptr);
    EXPECT_EQ(slices[2].region, nullptr);
}

TEST_F(MemoryRegistryTest, WhatWasFoundLastServesOnlyBlocksInsideItAndWhileItIsRegistered) {
    ASSERT_TRUE(add(100, 100));
    ASSERT_TRUE(add(300, 100));
    Completion completion;
    MemoryRegistry::Last last;
    const auto region_of = [&](const MemoryRegistry& registry, size_t offset, uint64_t length) {
        std::vector<Slice> slices;
        const Block block{.local = at(offset), .remote = 5000, .length = length};
        const size_t count = registry.resolve({&block, 1}, &completion, slices, last);
        EXPECT_EQ(count, length == 0 ? 0u : 1u);
        if (count == 0) return static_cast<const MemoryRegion*>(nullptr);
        EXPECT_EQ(slices[0].local, at(offset));
        EXPECT_EQ(slices[0].remote, 5000u);
        EXPECT_EQ(slices[0].length, length);
        EXPECT_EQ(slices[0].completion, &completion);
        return slices[0].region;
    };
    const MemoryRegion* const first = registry_.find(at(100), 100);
    const MemoryRegion* const second = registry_.find(at(300), 100);
    for (int i = 0; i < 2; ++i) {
        EXPECT_EQ(region_of(registry_, 100, 100), first);
        EXPECT_EQ(region_of(registry_, 199, 1), first);
        EXPECT_EQ(region_of(registry_, 150, 51), nullptr);
        EXPECT_EQ(region_of(registry_, 99, 2), nullptr);
        EXPECT_EQ(region_of(registry_, 200, 1), nullptr);
        EXPECT_EQ(region_of(registry_, 150, 0), nullptr);
        EXPECT_EQ(region_of(registry_, 250, 1), nullptr);
        EXPECT_EQ(region_of(registry_, 350, 50), second);
    }
    EXPECT_EQ(region_of(registry_, 150, 1), first);
    AccessTable access;
    const MemoryRegistry other(access, {});
    EXPECT_EQ(region_of(other, 150, 1), nullptr) << "another registry has none there";
    EXPECT_EQ(region_of(registry_, 150, 1), first);
    ASSERT_TRUE(remove(100));
    EXPECT_EQ(region_of(registry_, 150, 1), nullptr);
    EXPECT_EQ(region_of(registry_, 350, 1), second);
}

double cpu_seconds() {  // of this thread: what others do on the machine does not count
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) / 1e9;
}

TEST_F(MemoryRegistryTest, RegisteringManyBuffersIsNotQuadratic) {
    constexpr size_t kBuffers = 100'000;
    std::vector<std::byte> large(kBuffers * 2);
    const auto add_all = [&](size_t count) {
        const double start = cpu_seconds();
        for (size_t i = 0; i < count; ++i) EXPECT_TRUE(registry_.add({.address = large.data() + 2 * i, .length = 1}));
        for (size_t i = 0; i < count; ++i) EXPECT_TRUE(registry_.remove(large.data() + 2 * i, Deadline::after(5s)));
        return cpu_seconds() - start;
    };
    add_all(kBuffers / 10);  // warm
    const double few = add_all(kBuffers / 10), many = add_all(kBuffers);
    EXPECT_LT(many, few * 40) << few << " s for a tenth, " << many << " s for all: ten times as many should cost about ten times";
}

TEST_F(MemoryRegistryTest, ThreadsMayRegisterAndLookUpAtOnce) {
    std::vector<std::jthread> threads;
    for (size_t t = 0; t < 4; ++t) {
        threads.emplace_back([this, t] {
            for (int i = 0; i < 500; ++i) {
                EXPECT_TRUE(add(t * 1000, 500));
                EXPECT_NE(registry_.find(at(t * 1000 + 10), 10), nullptr);
                EXPECT_TRUE(remove(t * 1000));
            }
        });
    }
    threads.clear();
    EXPECT_EQ(registry_.size(), 0u);
}

TEST_F(MemoryRegistryTest, ManyTasksOfABatchCostNoMoreThanTheirNumber) {
    std::vector<std::byte> memory(64);
    const Block block{.local = memory.data(), .remote = 1, .length = 1};
    std::vector<Slice> slices;
    size_t moved = 0;
    for (int i = 0; i < 10'000; ++i) {
        const size_t room = slices.capacity(), before = slices.size();
        registry_.resolve({&block, 1}, nullptr, slices);
        if (slices.capacity() != room) moved += before;
    }
    EXPECT_LT(moved, 2u * 10'000);
}

}  // namespace
}  // namespace mooncake
