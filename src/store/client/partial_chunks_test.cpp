// SPDX-License-Identifier: Apache-2.0
#include "store/client/partial_chunks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>

#include "store/protocol/stored_form.h"

namespace mooncake::store {
namespace {

std::vector<std::byte> random_bytes(size_t length) {
    std::mt19937_64 random(length);
    std::vector<std::byte> bytes(length);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    return bytes;
}

/// [0, length) in parts, in any order.
std::vector<PartialChunks::Range> shuffled(uint64_t length, uint64_t longest, std::mt19937_64& random) {
    std::vector<PartialChunks::Range> parts;
    for (uint64_t at = 0; at < length;) {
        const uint64_t now = std::min<uint64_t>(length - at, random() % longest + 1);
        parts.emplace_back(at, at + now);
        at += now;
    }
    std::shuffle(parts.begin(), parts.end(), random);
    return parts;
}

TEST(PartialChunks, HashAChunkOnceAllOfItWasSeen) {
    std::mt19937_64 random(1);
    PartialChunks chunks;
    for (const uint64_t whole : {uint64_t{2}, uint64_t{1000}, kChunkBytes}) {
        const auto value = random_bytes(whole);
        const auto parts = shuffled(whole, whole / 2, random);
        for (size_t i = 0; i < parts.size(); ++i) {
            const auto [from, to] = parts[i];
            const uint64_t hash = chunks.add(7, whole, from, value.data() + from, to - from);
            ASSERT_EQ(hash, i + 1 < parts.size() ? 0 : hash_bytes(value)) << whole << " " << i;
        }
    }
}

TEST(PartialChunks, WhatIsForgottenHasToBeSeenAgain) {
    const auto value = random_bytes(3000);
    PartialChunks chunks;
    const auto add = [&](uint64_t from, uint64_t to) { return chunks.add(1, 3000, from, value.data() + from, to - from); };
    EXPECT_EQ(add(0, 1000), 0u);
    EXPECT_EQ(add(2000, 3000), 0u);
    chunks.forget(1, {0, 1000});
    chunks.forget(2, {0, 1000});
    EXPECT_EQ(add(1000, 2000), 0u);
    EXPECT_EQ(add(0, 1000), hash_bytes(value));
}

TEST(PartialChunks, SayWhatIsMissing) {
    const auto value = random_bytes(3000);
    PartialChunks chunks;
    EXPECT_EQ(chunks.add(1, 3000, 500, value.data() + 500, 500), 0u);
    EXPECT_EQ(chunks.add(1, 3000, 2000, value.data() + 2000, 10), 0u);
    std::vector<std::byte> got(3000);
    const std::vector<PartialChunks::Range> missing{{0, 500}, {1000, 2000}, {2010, 3000}};
    EXPECT_EQ(chunks.take(1, 3000, got.data()), missing);
    EXPECT_TRUE(std::equal(got.begin() + 500, got.begin() + 1000, value.begin() + 500));
    EXPECT_TRUE(std::equal(got.begin() + 2000, got.begin() + 2010, value.begin() + 2000));
    EXPECT_EQ(chunks.take(1, 3000, got.data()), (std::vector<PartialChunks::Range>{{0, 3000}})) << "nothing is left of it";
}

TEST(SeenPiece, KnowsTheChunksThatAreWhollyInIt) {
    std::mt19937_64 random(2);
    const uint64_t length = 6 * kChunkBytes + 100, offset = kChunkBytes - 10;
    const auto value = random_bytes(length);
    const auto* const local = reinterpret_cast<const std::byte*>(uint64_t{1} << 40);  // of a device: never touched
    for (const uint64_t end : {length, length - 1, 3 * kChunkBytes}) {
        SeenPiece piece(local, offset, end - offset, length);
        piece.begin(local, end - offset);
        const auto parts = shuffled(end - offset, 2 * kChunkBytes, random);
        {
            const auto show = [&](size_t first) {
                for (size_t i = first; i < parts.size(); i += 2)
                    piece.passed(local + parts[i].first, value.data() + offset + parts[i].first, parts[i].second - parts[i].first);
            };
            const std::jthread other([&] { show(1); });
            show(0);
        }
        for (uint64_t chunk = 0; chunk < 8; ++chunk) {
            const uint64_t from = chunk * kChunkBytes, to = std::min(from + kChunkBytes, length);
            const bool whole = from < length && from >= offset && to <= end;
            EXPECT_EQ(piece.hash(chunk), whole ? hash_bytes(std::span(value).subspan(from, to - from)) : 0) << chunk << " " << end;
        }
        piece.begin(local, end - offset);
        EXPECT_EQ(piece.hash(1), 0u) << "another attempt has begun";
    }
}

}  // namespace
}  // namespace mooncake::store
