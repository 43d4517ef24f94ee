// SPDX-License-Identifier: Apache-2.0
#include "store/service/byte_log.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace mooncake::store {
namespace {

std::vector<std::byte> text(size_t bytes, size_t value) { return std::vector<std::byte>(bytes, static_cast<std::byte>(value)); }

TEST(ByteLogTest, GivesBackEachTextUntilItIsDropped) {
    ByteLog log;
    std::vector<std::pair<uint64_t, size_t>> kept;
    for (size_t i = 0; i < 1000; ++i) kept.emplace_back(log.append(text(i, i)), i);
    for (size_t from = 0; from < kept.size(); from += 100) {
        log.drop_before(kept[from].first);
        for (size_t i = from; i < kept.size(); ++i) {
            const auto read = log.read(kept[i].first, kept[i].second);
            ASSERT_TRUE(std::ranges::equal(read, text(i, i))) << i;
        }
    }
}

TEST(ByteLogTest, UsesTheSameMemoryAgain) {
    ByteLog log;
    for (int round = 0; round < 100; ++round) {
        for (int i = 0; i < 10; ++i) log.append(text(1000, 1));
        log.clear();
    }
    EXPECT_EQ(log.blocks(), 1u);
}

TEST(ByteLogTest, KeepsLittleMemoryForLater) {
    ByteLog log;
    for (int i = 0; i < 1000; ++i) log.append(text(ByteLog::kBlockBytes, 1));
    log.append(text(3 * ByteLog::kBlockBytes, 2));
    EXPECT_EQ(log.blocks(), 1001u);
    log.clear();
    EXPECT_EQ(log.blocks(), ByteLog::kSpareMax);
}

TEST(ByteLogTest, ALongTextHasABlockOfItsOwn) {
    ByteLog log;
    const uint64_t before = log.append(text(10, 1)), longer = log.append(text(3 * ByteLog::kBlockBytes, 2)),
                   after = log.append(text(10, 3));
    EXPECT_TRUE(std::ranges::equal(log.read(before, 10), text(10, 1)));
    EXPECT_TRUE(std::ranges::equal(log.read(longer, 3 * ByteLog::kBlockBytes), text(3 * ByteLog::kBlockBytes, 2)));
    EXPECT_TRUE(std::ranges::equal(log.read(after, 10), text(10, 3)));
}

}  // namespace
}  // namespace mooncake::store
