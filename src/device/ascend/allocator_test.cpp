// SPDX-License-Identifier: Apache-2.0
#include "device/ascend/allocator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "device/ascend/testing/emulator.h"

namespace mooncake::ascend {
namespace {

using testing::Emulator;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kGiB = uint64_t{1} << 30;

class AscendAllocatorTest : public ::testing::Test {
protected:
    void TearDown() override {
        ::unsetenv("ASCEND_EMU_QUOTA_1G");
        ::unsetenv("ASCEND_EMU_QUOTA_2M");
        emulator.set_faults("");
    }
    Emulator emulator{85};  // without an allocator of the vendor's
};

TEST_F(AscendAllocatorTest, TakesTheFirstStepOfTheLadderThatHolds) {
    struct Step {
        const char *of_1g, *of_2m;
        uint64_t page_bytes;
        int node;
    };
    for (const Step& step : {Step{"0:2,any:2", "any:9", kGiB, 0}, Step{"any:1", "any:9", kGiB, -1}, Step{"2:9", "any:512", 2 << 20, -1}}) {
        ::setenv("ASCEND_EMU_QUOTA_1G", step.of_1g, 1);
        ::setenv("ASCEND_EMU_QUOTA_2M", step.of_2m, 1);
        const auto made = allocate_fabric(emulator.library(), 1, kGiB);
        ASSERT_TRUE(made) << made.error().to_string();
        EXPECT_EQ((*made)->what().page_bytes, step.page_bytes);
        EXPECT_EQ((*made)->what().numa_node, step.node);
        EXPECT_EQ((*made)->what().length, kGiB);
        (*made)->what().address[kGiB - 1] = std::byte{1};
    }
    ::setenv("ASCEND_EMU_QUOTA_1G", "0:0", 1);
    ::setenv("ASCEND_EMU_QUOTA_2M", "0:0", 1);
    const auto none = allocate_fabric(emulator.library(), 1, kGiB);
    ASSERT_FALSE(none);
    EXPECT_EQ(none.error().code(), Code::kNoSpace);
    EXPECT_THAT(none.error().message(), HasSubstr("1024 MiB nearby"));
    EXPECT_THAT(none.error().message(), HasSubstr("207001"));
}

TEST_F(AscendAllocatorTest, WhatFailsHalfWayLeavesNothingBehind) {
    for (const char* const function : {"aclrtReserveMemAddress", "aclrtMapMem", "aclrtMemSetAccess"}) {
        emulator.set_faults(std::string(function) + "->return:207001");
        emulator.clear_log();
        EXPECT_FALSE(allocate_fabric(emulator.library(), 0, kGiB));
        EXPECT_EQ(emulator.calls("aclrtMallocPhysical"), emulator.calls("aclrtFreePhysical")) << function;
        EXPECT_EQ(emulator.calls("aclrtReleaseMemAddress"),
                  std::string(function) == "aclrtReserveMemAddress" ? 0 : emulator.calls("aclrtReserveMemAddress"));
    }
    emulator.set_faults("");
    emulator.clear_log();
    ASSERT_TRUE(allocate_fabric(emulator.library(), 0, kGiB));
    EXPECT_EQ(emulator.calls("aclrtUnmapMem") + emulator.calls("aclrtReleaseMemAddress") + emulator.calls("aclrtFreePhysical"), 3u);
}

TEST_F(AscendAllocatorTest, TheVendorsAllocatorIsUsedWhereThereIsOneAndThenNoOther) {
    const Emulator newer(92);
    const auto library = newer.library();
    ASSERT_TRUE(allocate_fabric(library, 0, kGiB));
    EXPECT_EQ(newer.calls("MallocMem"), 1u);
    newer.set_faults("MallocMem->return:503900");
    EXPECT_EQ(allocate_fabric(library, 0, kGiB).error().code(), Code::kNoSpace);
    EXPECT_EQ(newer.calls("aclrtMallocPhysical"), 0u);
    newer.set_faults("");
}

TEST_F(AscendAllocatorTest, PinnedMemoryGoesBackToTheRuntime) {
    // Finding 3: by what it is, not by a flag of the moment.
    emulator.clear_log();
    {
        const auto made = allocate_pinned(emulator.library(), 2, 1 << 20);
        ASSERT_TRUE(made);
        (*made)->what().address[0] = std::byte{1};
    }
    EXPECT_EQ(emulator.calls("aclrtFreeHost"), 1u);
    EXPECT_EQ(allocate_fabric(emulator.library(), 0, 4096).error().code(), Code::kInvalidArgument);
}

TEST(AscendBestEffort, TriesFromAllToHalfInWholeGibibytes) {
    EXPECT_THAT(best_effort_lengths(10 * kGiB), ElementsAre(10 * kGiB, 9 * kGiB, 8 * kGiB, 7 * kGiB, 6 * kGiB, 5 * kGiB));
    EXPECT_THAT(best_effort_lengths(kGiB * 21 / 10), ElementsAre(2 * kGiB)) << "1 GiB would be less than half";
    EXPECT_THAT(best_effort_lengths(kGiB), ElementsAre(kGiB));
    EXPECT_TRUE(best_effort_lengths(kGiB - 1).empty());
    EXPECT_TRUE(best_effort_lengths(0).empty());
    EXPECT_FALSE(best_effort_lengths(UINT64_MAX).empty());
}

TEST(AscendNodes, FourDevicesShareEverySecondNode) {
    const int nodes[] = {0, 0, 0, 0, 2, 2, 2, 2, 4, 4, 4, 4, 6, 6, 6, 6};
    for (int physical = 0; physical < 16; ++physical) EXPECT_EQ(near_node(physical), nodes[physical]);
}

}  // namespace
}  // namespace mooncake::ascend
