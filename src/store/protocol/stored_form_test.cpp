// SPDX-License-Identifier: Apache-2.0
#include "store/protocol/stored_form.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace mooncake::store {
namespace {

std::vector<std::byte> random_bytes(size_t length) {
    std::mt19937_64 random(length);
    std::vector<std::byte> bytes(length);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    return bytes;
}

uint64_t hash_whole(std::span<const std::byte> value, std::vector<uint64_t>& table) {
    const std::span<const std::byte> pieces[] = {value};
    return hash_value(pieces, table);
}

TEST(StoredForm, HasATableOnlyForMoreThanOneChunk) {
    EXPECT_EQ(stored_bytes(1), 1u);
    EXPECT_EQ(stored_bytes(kChunkBytes), kChunkBytes);
    EXPECT_EQ(stored_bytes(kChunkBytes + 1), kChunkBytes + 1 + 16);
    EXPECT_EQ(stored_bytes(1 << 20), (1 << 20) + 128u);
}

TEST(StoredForm, DoesNotDependOnHowAValueIsCut) {
    for (const size_t length : {size_t{1}, size_t{100}, kChunkBytes, kChunkBytes + 1, 5 * kChunkBytes + 77}) {
        const auto value = random_bytes(length);
        std::vector<uint64_t> whole_table, cut_table;
        const uint64_t whole = hash_whole(value, whole_table);
        std::mt19937_64 random(length + 1);
        for (int round = 0; round < 20; ++round) {
            std::vector<std::span<const std::byte>> pieces;
            for (std::span<const std::byte> rest = value; !rest.empty();) {
                const size_t cut = std::min<size_t>(rest.size(), random() % (2 * kChunkBytes));
                pieces.push_back(rest.first(cut));
                rest = rest.subspan(cut);
            }
            EXPECT_EQ(hash_value(pieces, cut_table), whole);
            EXPECT_EQ(cut_table, whole_table);
        }
    }
}

TEST(StoredForm, HashesTheTableAndItsEntriesTheChunks) {
    const auto value = random_bytes(2 * kChunkBytes + 5);
    std::vector<uint64_t> table;
    const uint64_t checksum = hash_whole(value, table);
    ASSERT_EQ(table.size(), 3u);
    EXPECT_EQ(checksum, hash_table(table));
    EXPECT_EQ(table[2], hash_bytes(std::span(value).subspan(2 * kChunkBytes)));
}

TEST(StoredForm, HashesWhatItCopiesAsIfAfterwards) {
    for (const size_t length : {0, 1, 240, 241, 4095, 4096, 8192, 8193, 12'288, 65'535, 65'536, 200'001}) {
        const auto from = random_bytes(length + 1);
        std::vector<std::byte> to(length + 2);
        const uint64_t hash = copy_and_hash(to.data() + 1, from.data(), length);
        EXPECT_TRUE(std::equal(from.begin(), from.end() - 1, to.begin() + 1));
        EXPECT_EQ(to.back(), std::byte{0});
        EXPECT_EQ(hash, hash_bytes(std::span(from).first(length))) << length;
    }
}

TEST(StoredForm, TellsEveryFlippedBit) {
    auto value = random_bytes(kChunkBytes + 3);
    std::vector<uint64_t> table;
    const uint64_t checksum = hash_whole(value, table);
    for (const size_t at : {size_t{0}, kChunkBytes - 1, kChunkBytes, kChunkBytes + 2}) {
        value[at] ^= std::byte{1};
        EXPECT_NE(hash_whole(value, table), checksum);
        value[at] ^= std::byte{1};
    }
}

}  // namespace
}  // namespace mooncake::store
