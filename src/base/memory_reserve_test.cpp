// SPDX-License-Identifier: Apache-2.0
#include "base/memory_reserve.h"

#include <gtest/gtest.h>

#include <memory>
#include <new>
#include <vector>

#include "base/testing/little_memory.h"

namespace mooncake {
namespace {

using testing::in_a_process_with;
using testing::kCannotLimitMemory;

constexpr size_t kMiB = 1 << 20;

TEST(MemoryReserve, IsGivenUpWhenThereIsNoOtherMemoryAndComesBack) {
    if (kCannotLimitMemory) GTEST_SKIP() << "not with this sanitizer";
    const int code = in_a_process_with(64 * kMiB, [] {
        if (!MemoryReserve::whole()) return 1;
        MemoryReserve::keep(32 * kMiB);
        if (!MemoryReserve::whole()) return 2;
        std::vector<std::unique_ptr<char[]>> blocks;
        blocks.reserve(1000);
        for (int i = 0; i < 1000 && MemoryReserve::whole(); ++i) blocks.push_back(std::make_unique_for_overwrite<char[]>(kMiB));
        if (MemoryReserve::whole()) return 3;  // it ran out, and nothing was thrown
        const size_t outside = blocks.size();
        try {
            for (int i = 0; i < 1000; ++i) blocks.push_back(std::make_unique_for_overwrite<char[]>(kMiB));
            return 4;
        } catch (const std::bad_alloc&) {}
        if (blocks.size() < outside + 16) return 5;
        blocks.clear();
        return MemoryReserve::whole() ? 0 : 6;
    });
    EXPECT_EQ(code, 0);
}

}  // namespace
}  // namespace mooncake
