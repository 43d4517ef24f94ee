// SPDX-License-Identifier: Apache-2.0
#include "device/ascend/ascend_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "device/ascend/testing/emulator.h"

namespace mooncake::ascend {
namespace {

using testing::Emulator;
using ::testing::HasSubstr;

class AscendDeviceTest : public ::testing::Test {
protected:
    AscendDeviceTest() { emulator.set_device(0); }
    void TearDown() override { emulator.set_faults(""); }

    std::vector<CopyPart> parts(std::byte* to, const std::byte* from, size_t count, uint64_t length) {
        std::vector<CopyPart> all;
        for (size_t i = 0; i < count; ++i)
            all.push_back({.to = to + i * length, .from = from + (count - 1 - i) * length, .length = length});
        return all;
    }
    static std::vector<std::byte> noise(uint64_t length) {
        std::vector<std::byte> bytes(length);
        for (uint64_t i = 0; i < length; ++i) bytes[i] = static_cast<std::byte>(i * 2654435761u >> 13);
        return bytes;
    }

    Emulator emulator;
    AscendDevice device{[] {
        AscendOptions options;
        options.libraries = {Emulator::file_of(92)};
        return options;
    }()};
};

TEST_F(AscendDeviceTest, KnowsItsOwnMemoryAndNoOther) {
    std::byte* const memory = emulator.allocate(2, 1 << 20);
    const auto info = device.describe(memory + 100, 5000).value();
    ASSERT_TRUE(info);
    EXPECT_EQ(info->kind, MemoryKind::kAscend);
    EXPECT_EQ(info->device, 2);
    const auto beyond = device.describe(memory, 8 << 20);
    ASSERT_FALSE(beyond);
    EXPECT_THAT(beyond.error().message(), HasSubstr("NPU 2"));
    std::byte* const pinned = emulator.allocate_host(4096);
    EXPECT_FALSE(device.describe(pinned, 100).value()) << "pinned memory is the host's";
    int here = 0;
    EXPECT_FALSE(device.describe(&here, sizeof here).value());
    emulator.free_host(pinned);
    emulator.free(memory);
}

TEST_F(AscendDeviceTest, KnowsNothingWhereNobodyLoadedTheRuntime) {
    AscendOptions options;
    options.libraries = {"/nowhere/libascendcl.so"};
    AscendDevice other(options);
    int here = 0;
    EXPECT_FALSE(other.describe(&here, sizeof here).value());
    EXPECT_EQ(other.state().error().code(), Code::kNotSupported);
}

TEST_F(AscendDeviceTest, CopiesBatchesOfAnyLength) {
    constexpr uint64_t kLength = 96;
    for (const size_t count : {1, 4095, 4096, 4097, 8192, 8193}) {
        const uint64_t bytes = count * kLength;
        std::byte* const memory = emulator.allocate(1, bytes);
        auto from = noise(bytes);
        std::vector<std::byte> back(bytes);
        emulator.clear_log();
        ASSERT_TRUE(device.copy(MemoryKind::kAscend, MemoryKind::kHost, parts(memory, from.data(), count, kLength)));
        ASSERT_TRUE(device.copy(MemoryKind::kHost, MemoryKind::kAscend, parts(back.data(), memory, count, kLength)));
        EXPECT_EQ(back, from) << count;
        EXPECT_EQ(emulator.calls("aclrtMemcpyBatch"), 2 * ((count + 4095) / 4096));
        emulator.free(memory);
    }
    EXPECT_EQ(device.single_copies(), 0u);
}

/// Finding 6 of the public code: at a later batch only what remains is copied by other means.
TEST_F(AscendDeviceTest, GoesOnOneByOneWhereBatchesAreNotSupported) {
    constexpr size_t kCount = 8193;
    constexpr uint64_t kLength = 64;
    for (const int nth : {1, 2, 3}) {
        AscendOptions options;
        options.libraries = {Emulator::file_of(92)};
        AscendDevice fresh(options);
        std::byte* const memory = emulator.allocate(1, kCount * kLength);
        const auto from = noise(kCount * kLength);
        emulator.set_faults(format_text("aclrtMemcpyBatch,nth={}->return:207000", nth));
        ASSERT_TRUE(fresh.copy(MemoryKind::kAscend, MemoryKind::kHost, parts(memory, from.data(), kCount, kLength)));
        EXPECT_EQ(fresh.single_copies(), kCount - 4096 * static_cast<size_t>(nth - 1));
        std::vector<std::byte> back(kCount * kLength);
        emulator.clear_log();
        ASSERT_TRUE(fresh.copy(MemoryKind::kHost, MemoryKind::kAscend, parts(back.data(), memory, kCount, kLength)));
        EXPECT_EQ(back, from);
        EXPECT_EQ(emulator.calls("aclrtMemcpyBatch"), 0u) << "it is remembered";
        emulator.free(memory);
    }
}

TEST_F(AscendDeviceTest, CopiesMemoryOfSeveralDevicesInOneCall) {
    // Finding 9: each on a stream of its own device; finding 14: every part by its own place.
    constexpr uint64_t kLength = 10'000;
    std::byte* const one = emulator.allocate(1, kLength);
    std::byte* const two = emulator.allocate(2, kLength);
    const auto from = noise(2 * kLength);
    const CopyPart up[] = {{.to = one, .from = from.data(), .length = kLength},
                           {.to = two, .from = from.data() + kLength, .length = kLength}};
    ASSERT_TRUE(device.copy(MemoryKind::kAscend, MemoryKind::kHost, up));
    const CopyPart across[] = {{.to = one, .from = two + 5, .length = 100}, {.to = two + 500, .from = one + 500, .length = 100}};
    const auto copied = device.copy(MemoryKind::kAscend, MemoryKind::kAscend, across);
    ASSERT_TRUE(copied) << copied.error().to_string();
    EXPECT_EQ(emulator.read(one, 1)[0], from[kLength + 5]);
    EXPECT_EQ(emulator.read(two + 500, 1)[0], from[500]);
    emulator.free(one);
    emulator.free(two);
}

TEST_F(AscendDeviceTest, CopiesFromThreadsWithoutAContextAndLeavesOthersAlone) {
    std::byte* const memory = emulator.allocate(3, 4096);
    const auto from = noise(4096);
    std::thread([&] {
        const CopyPart part{.to = memory, .from = from.data(), .length = from.size()};
        EXPECT_TRUE(device.copy(MemoryKind::kAscend, MemoryKind::kHost, {&part, 1}));
    }).join();
    std::thread([&] {
        emulator.set_device(1);
        std::vector<std::byte> back(4096);
        const CopyPart part{.to = back.data(), .from = memory, .length = back.size()};
        EXPECT_TRUE(device.copy(MemoryKind::kHost, MemoryKind::kAscend, {&part, 1}));
        EXPECT_EQ(back, from);
        EXPECT_EQ(emulator.device_of_thread(), 1);
    }).join();
    emulator.free(memory);
}

TEST_F(AscendDeviceTest, ACopyThatFailsIsAnErrorThatSaysWhere) {
    std::byte* const memory = emulator.allocate(1, 8192);
    const auto from = noise(8192);
    emulator.set_faults("aclrtMemcpyBatch->return:500001");
    const auto failed = device.copy(MemoryKind::kAscend, MemoryKind::kHost, parts(memory, from.data(), 2, 4096));
    ASSERT_FALSE(failed);
    EXPECT_THAT(failed.error().message(), HasSubstr("aclrtMemcpyBatch on device 1 answered 500001"));
    emulator.set_faults("stream->return:507046");
    const CopyPart within{.to = memory, .from = memory + 4096, .length = 10};
    EXPECT_FALSE(device.copy(MemoryKind::kAscend, MemoryKind::kAscend, {&within, 1}));
    emulator.set_faults("");
    EXPECT_TRUE(device.copy(MemoryKind::kAscend, MemoryKind::kAscend, {&within, 1})) << "on another stream";
    emulator.free(memory);
    EXPECT_FALSE(device.copy(MemoryKind::kAscend, MemoryKind::kHost, parts(memory, from.data(), 1, 4096))) << "freed";
}

TEST_F(AscendDeviceTest, GivesPinnedMemory) {
    const auto memory = device.allocate_host(1 << 20);
    ASSERT_TRUE(memory) << memory.error().to_string();
    (*memory)[0] = std::byte{1};
    device.free_host(*memory);
}

}  // namespace
}  // namespace mooncake::ascend
