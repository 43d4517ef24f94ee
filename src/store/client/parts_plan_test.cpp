// SPDX-License-Identifier: Apache-2.0
#include "store/client/parts_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>
#include <random>

#include "base/time.h"
#include "store/protocol/stored_form.h"

namespace mooncake::store {
namespace {

constexpr uint64_t kPart = 64;

TEST(PartsPlan, FetchesEachChunkOnceHoweverManyPartsTouchIt) {
    std::vector<std::byte> to(4 * kPart);
    PartsPlan plan;
    plan.begin(3 * kChunkBytes, true);
    plan.add(to.data(), 2 * kChunkBytes + 7, kPart, true);
    plan.add(to.data() + kPart, 5, kPart, true);
    plan.add(to.data() + 2 * kPart, 2 * kChunkBytes, kPart, true);
    plan.add(to.data() + 3 * kPart, kChunkBytes - kPart / 2, kPart, true);  // of two chunks
    plan.finish();

    std::vector<uint64_t> fetched;
    for (const Block& block : plan.blocks()) fetched.push_back(block.remote);
    EXPECT_EQ(fetched, (std::vector<uint64_t>{2 * kChunkBytes, 0, kChunkBytes, 3 * kChunkBytes})) << "and the table";
    EXPECT_EQ(plan.bytes(), 3 * kChunkBytes + table_bytes(3 * kChunkBytes));
    ASSERT_EQ(plan.copies().size(), 5u);
    for (const PartsPlan::Copy& copy : plan.copies()) {
        const auto has = [&](const Block& block) {
            return copy.from >= block.local && copy.from + copy.length <= block.local + block.length;
        };
        EXPECT_EQ(std::count_if(plan.blocks().begin(), plan.blocks().end(), has), 1);
    }
    EXPECT_EQ(plan.copies()[0].from, plan.blocks()[0].local + 7);
    EXPECT_EQ(plan.copies()[2].from, plan.blocks()[0].local);
}

TEST(PartsPlan, FetchesWholeChunksToTheirPlace) {
    std::vector<std::byte> to(2 * kChunkBytes);
    PartsPlan plan;
    plan.begin(2 * kChunkBytes, true);
    plan.add(to.data(), 0, to.size(), true);
    plan.add(to.data(), kChunkBytes, 1, true);  // what somebody has whole is not there for others, who may be given it first
    plan.finish();
    ASSERT_EQ(plan.chunks().size(), 3u);
    EXPECT_EQ(plan.chunks()[0].at, to.data());
    EXPECT_EQ(plan.chunks()[1].at, to.data() + kChunkBytes);
    EXPECT_EQ(plan.copies().size(), 1u);
    EXPECT_EQ(plan.table().size(), 2u);
}

TEST(PartsPlan, BeginsAnew) {
    std::byte to[kPart];
    PartsPlan plan;
    for (const bool verified : {true, false, true}) {
        plan.begin(2 * kChunkBytes, verified);
        plan.add(to, 1, kPart, true);
        plan.finish();
        EXPECT_EQ(plan.blocks().size(), verified ? 2u : 1u);
        EXPECT_EQ(plan.copies().size(), verified ? 1u : 0u);
        EXPECT_EQ(plan.bytes(), verified ? kChunkBytes + table_bytes(2 * kChunkBytes) : kPart);
    }
}

/// Of the processor, so that others on the machine do not count.
Duration time_to_plan(std::span<const uint64_t> offsets, uint64_t value_length) {
    std::byte to[kPart];
    const auto used = [] {
        timespec time{};
        ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
        return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
    };
    PartsPlan plan;
    plan.begin(value_length, true);
    const auto before = used();
    for (const uint64_t offset : offsets) plan.add(to, offset, kPart, true);
    return used() - before;
}

TEST(PartsPlan, PartsInAnyOrderCostNoWalkOverTheOthers) {
    constexpr uint64_t kChunks = 4096, kParts = 20 * kChunks;
    std::mt19937_64 random(1);
    std::vector<uint64_t> offsets(kParts);
    for (uint64_t& offset : offsets) offset = random() % (kChunks * kChunkBytes / kPart) * kPart;
    const Duration scattered = time_to_plan(offsets, kChunks * kChunkBytes);
    std::sort(offsets.begin(), offsets.end());
    const Duration sorted = time_to_plan(offsets, kChunks * kChunkBytes);
    EXPECT_LT(scattered, 12 * sorted);  // three times; with such a walk, some hundred times
}

}  // namespace
}  // namespace mooncake::store
