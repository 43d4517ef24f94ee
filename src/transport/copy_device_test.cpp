// SPDX-License-Identifier: Apache-2.0
#include "transport/copy_device.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace mooncake {
namespace {

/// Its program keeps it busy for longer than a copy waits.
class BusyDevice final : public Device {
public:
    explicit BusyDevice(int& calls) : calls_(calls) {}
    MemoryKind kind() const noexcept override { return MemoryKind::kCuda; }
    Result<std::optional<MemoryInfo>> describe(const void*, uint64_t) override { return std::nullopt; }
    Result<> copy(MemoryKind, MemoryKind, std::span<const CopyPart>) override {
        ++calls_;
        return fail(Code::kTimedOut, "busy");
    }

private:
    int& calls_;
};

TEST(DeviceCopies, WhatWaitedInVainForADeviceIsNotTriedPieceByPiece) {
    int calls = 0;
    std::vector<std::unique_ptr<Device>> others;
    others.push_back(std::make_unique<BusyDevice>(calls));
    const Devices devices(std::move(others));
    std::vector<std::byte> memory(64);
    CopyFailures failures;
    DeviceCopies copies(devices, failures);
    for (size_t i = 0; i < 8; ++i)
        copies.add({.slice = i}, MemoryKind::kHost, MemoryKind::kCuda, {.to = memory.data(), .from = memory.data() + 32, .length = 4});
    copies.flush();
    EXPECT_EQ(calls, 1) << "each would have waited as long";
    ASSERT_EQ(failures.size(), 8u);
    for (size_t i = 0; i < failures.size(); ++i) {
        EXPECT_EQ(failures[i].first, i);
        EXPECT_EQ(failures[i].second.code(), Code::kTimedOut);
    }
}

}  // namespace
}  // namespace mooncake
