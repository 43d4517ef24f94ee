// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include "device/device.h"
#include "device/testing/fake_device.h"

namespace mooncake {
namespace {

using testing::FakeDevice;

struct WithFake {
    WithFake() {
        auto made = std::make_unique<FakeDevice>(MemoryKind::kAscend);
        fake = made.get();
        std::vector<std::unique_ptr<Device>> others;
        others.push_back(std::move(made));
        devices = std::make_unique<Devices>(std::move(others));
    }
    FakeDevice* fake = nullptr;
    std::unique_ptr<Devices> devices;
};

TEST(Devices, HostMemoryIsAlwaysThere) {
    Devices& devices = Devices::of_process();
    EXPECT_TRUE(devices.has(MemoryKind::kHost));
    EXPECT_FALSE(devices.has(MemoryKind::kAscend));
    std::byte byte{};
    const auto info = devices.describe(&byte, 1);
    ASSERT_TRUE(info);
    EXPECT_EQ(info->kind, MemoryKind::kHost);
    EXPECT_EQ(info->device, -1);
    EXPECT_TRUE(info->writable);
}

TEST(Devices, RefuseWhatCanBeNoMemory) {
    Devices& devices = Devices::of_process();
    std::byte byte{};
    EXPECT_EQ(devices.describe(nullptr, 1).error().code(), Code::kInvalidArgument);
    EXPECT_EQ(devices.describe(&byte, 0).error().code(), Code::kInvalidArgument);
    EXPECT_EQ(devices.describe(&byte, UINT64_MAX).error().code(), Code::kInvalidArgument);
    EXPECT_EQ(devices.describe(reinterpret_cast<void*>(16), 1).error().code(), Code::kInvalidArgument);
}

TEST(Devices, TellDeviceMemoryFromHostMemory) {
    WithFake with;
    std::byte* const memory = with.fake->allocate(10'000);
    const auto info = with.devices->describe(memory + 100, 1000);
    ASSERT_TRUE(info);
    EXPECT_EQ(info->kind, MemoryKind::kAscend);
    EXPECT_EQ(info->device, 0);
    EXPECT_EQ(info->base, reinterpret_cast<uint64_t>(memory));
    EXPECT_GE(info->length, 10'000U);
    EXPECT_FALSE(with.devices->describe(memory, 1 << 20));
}

TEST(Devices, AnAddressThatIsAllocatedAgainHasAnotherNumber) {
    WithFake with;
    std::byte* const first = with.fake->allocate(4096);
    const uint64_t number = with.devices->describe(first, 1)->allocation;
    with.fake->free(first);
    std::byte* const second = with.fake->allocate(4096);
    EXPECT_NE(with.devices->describe(second, 1)->allocation, number);
}

TEST(Devices, CopyBetweenEveryPairOneDeviceReaches) {
    WithFake with;
    std::byte* const memory = with.fake->allocate(4096);
    std::byte* const other = with.fake->allocate(4096);
    std::vector<std::byte> from(4096, std::byte{5}), to(4096);
    const auto copy = [&](MemoryKind to_kind, std::byte* at, MemoryKind from_kind, const std::byte* source) {
        const CopyPart part{at, source, 4096};
        return with.devices->copy(to_kind, from_kind, {&part, 1}).has_value();
    };
    EXPECT_TRUE(copy(MemoryKind::kAscend, memory, MemoryKind::kHost, from.data()));
    EXPECT_TRUE(copy(MemoryKind::kAscend, other, MemoryKind::kAscend, memory));
    EXPECT_TRUE(copy(MemoryKind::kHost, to.data(), MemoryKind::kAscend, other));
    EXPECT_EQ(to, from);
    EXPECT_EQ(with.fake->copies(), 3U);
}

TEST(Devices, SayWhenNobodyCopiesBetweenTwoKinds) {
    WithFake with;
    EXPECT_EQ(with.devices->between(MemoryKind::kAscend, MemoryKind::kCuda), nullptr);
    EXPECT_EQ(with.devices->copy(MemoryKind::kCuda, MemoryKind::kHost, {}).error().code(), Code::kNotSupported);
}

TEST(FakeDeviceDeathTest, TrapsOnATouchByCpu) {
    WithFake with;
    std::byte* const memory = with.fake->allocate(4096);
    EXPECT_DEATH(std::memset(memory, 1, 1), "");
}

TEST(FakeDevice, SystemCallsReportABadAddress) {
    WithFake with;
    const std::byte* const memory = with.fake->allocate(4096);
    std::array<int, 2> ends{};
    ASSERT_EQ(::pipe(ends.data()), 0);
    EXPECT_EQ(::write(ends[1], memory, 1), -1);
    EXPECT_EQ(errno, EFAULT);
    ::close(ends[0]);
    ::close(ends[1]);
}

TEST(FakeDevice, KeepsWhatIsWritten) {
    FakeDevice fake;
    std::byte* const memory = fake.allocate(100);
    const std::vector<std::byte> bytes(50, std::byte{9});
    fake.write(memory + 20, bytes);
    EXPECT_EQ(fake.read(memory + 20, 50), bytes);
    fake.break_down();
    const CopyPart part{memory, memory + 20, 10};
    EXPECT_EQ(fake.copy(MemoryKind::kCuda, MemoryKind::kCuda, {&part, 1}).error().code(), Code::kUnavailable);
}

}  // namespace
}  // namespace mooncake
