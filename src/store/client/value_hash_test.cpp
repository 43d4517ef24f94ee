// SPDX-License-Identifier: Apache-2.0
#include "store/client/value_hash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>

#include "store/protocol/stored_form.h"

namespace mooncake::store {
namespace {

constexpr uint64_t kLengths[] = {
    1, 100, 4096, 10'000, kChunkBytes - 1, kChunkBytes, kChunkBytes + 1, 5 * kChunkBytes, 7 * kChunkBytes + 77};

std::vector<std::byte> random_bytes(size_t length) {
    std::mt19937_64 random(length);
    std::vector<std::byte> bytes(length);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    return bytes;
}

/// What it must come to.
struct Expected {
    explicit Expected(std::span<const std::byte> value) { checksum = hash_value({&value, 1}, table); }
    std::vector<uint64_t> table;
    uint64_t checksum = 0;
};

void expect_equal(ValueHash& hash, const Expected& expected) {
    EXPECT_EQ(hash.checksum().value(), expected.checksum);
    EXPECT_TRUE(std::ranges::equal(hash.table(), expected.table));
}

TEST(ValueHash, IsThatOfTheValueHoweverMuchWasCopiedByIt) {
    std::mt19937_64 random(1);
    for (const uint64_t length : kLengths) {
        auto value = random_bytes(length);
        const Expected expected(value);
        const Piece piece{value.data(), length};
        for (int round = 0; round < 10; ++round) {
            std::vector<std::byte> copy(length);
            ValueHash hash;
            hash.start({&piece, 1}, length, Direction::kWrite);
            hash.copier(0)->begin(piece.data, piece.length);
            for (uint64_t at = 0; at < length;) {
                const uint64_t now = round == 0 ? length : std::min<uint64_t>(length - at, random() % (3 * kChunkBytes) + 1);
                if (round % 3 != 2) hash.copier(0)->copy(copy.data() + at, value.data() + at, now);
                else std::memcpy(copy.data() + at, value.data() + at, now);
                at += now;
            }
            EXPECT_EQ(copy, value);
            expect_equal(hash, expected);
        }
    }
}

TEST(ValueHash, TakesValuesInPieces) {
    std::mt19937_64 random(2);
    for (const uint64_t length : kLengths) {
        const auto value = random_bytes(length);
        const Expected expected(value);
        for (int round = 0; round < 10; ++round) {
            std::vector<std::byte> into(length + 100);  // with room that is not needed
            std::vector<Piece> pieces;
            for (uint64_t at = 0; at < into.size();) {
                const uint64_t now = std::min<uint64_t>(into.size() - at, random() % (2 * kChunkBytes));
                pieces.push_back({into.data() + at, now});
                at += now;
            }
            ValueHash hash;
            hash.start(pieces, length, Direction::kRead);
            uint64_t at = 0;
            for (size_t i = 0; i < pieces.size(); ++i) {
                const uint64_t now = std::min(pieces[i].length, length - at);
                hash.copier(i)->begin(pieces[i].data, now);
                if (now > 0) hash.copier(i)->copy(pieces[i].data, value.data() + at, now);
                at += now;
            }
            expect_equal(hash, expected);
        }
    }
}

TEST(ValueHash, SeesValuesPassInAnyPartsAndOrder) {
    std::mt19937_64 random(3);
    for (const uint64_t length : kLengths) {
        auto value = random_bytes(length);
        const Expected expected(value);
        const Piece piece{value.data(), length};
        for (int round = 0; round < 10; ++round) {
            std::vector<std::pair<uint64_t, uint64_t>> parts;
            for (uint64_t at = 0; at < length;) {
                const uint64_t now = round == 0 ? length : std::min<uint64_t>(length - at, random() % (3 * kChunkBytes) + 1);
                parts.emplace_back(at, now);
                at += now;
            }
            std::shuffle(parts.begin(), parts.end(), random);
            ValueHash hash;
            hash.start({&piece, 1}, length, Direction::kRead);
            hash.copier(0)->begin(piece.data, piece.length);
            for (const auto& [at, now] : parts) hash.copier(0)->passed(value.data() + at, value.data() + at, now);
            expect_equal(hash, expected);
        }
    }
}

TEST(ValueHash, KeepsWhatItSawPass) {
    auto value = random_bytes(3 * kChunkBytes);
    const Expected expected(value);
    const Piece piece{value.data(), value.size()};
    ValueHash hash;
    hash.start({&piece, 1}, value.size(), Direction::kWrite);
    hash.copier(0)->begin(piece.data, piece.length);
    hash.copier(0)->passed(value.data(), value.data(), value.size());
    value[0] ^= std::byte{1};  // after it has left
    expect_equal(hash, expected);
}

TEST(ValueHash, OfAReadIsThatOfWhatArrived) {
    auto value = random_bytes(3 * kChunkBytes);
    const Expected expected(value);
    value[2 * kChunkBytes] ^= std::byte{1};
    std::vector<std::byte> into(value.size());
    const Piece piece{into.data(), into.size()};
    ValueHash hash;
    hash.start({&piece, 1}, value.size(), Direction::kRead);
    hash.copier(0)->copy(into.data(), value.data(), value.size());
    EXPECT_NE(hash.checksum().value(), expected.checksum);
}

TEST(ValueHash, DoesNotCountWhatAnEarlierAttemptCopied) {
    // A first attempt copies the right bytes; a second one, over a network, brings others.
    const auto value = random_bytes(2 * kChunkBytes);
    const Expected expected(value);
    std::vector<std::byte> into(value.size());
    const Piece piece{into.data(), into.size()};
    ValueHash hash;
    hash.start({&piece, 1}, value.size(), Direction::kRead);
    hash.copier(0)->begin(piece.data, piece.length);
    hash.copier(0)->copy(into.data(), value.data(), value.size());
    hash.copier(0)->begin(piece.data, piece.length);
    into[5] ^= std::byte{1};
    EXPECT_NE(hash.checksum().value(), expected.checksum);
}

TEST(ValueHash, CanBeFilledByTwoThreads) {
    auto value = random_bytes(64 * kChunkBytes);
    const Expected expected(value);
    std::vector<std::byte> copy(value.size());
    const Piece piece{value.data(), value.size()};
    ValueHash hash;
    hash.start({&piece, 1}, value.size(), Direction::kWrite);
    hash.copier(0)->begin(piece.data, piece.length);
    {
        const size_t half = value.size() / 2;
        const std::jthread other([&] { hash.copier(0)->copy(copy.data() + half, value.data() + half, half); });
        hash.copier(0)->copy(copy.data(), value.data(), half);
    }
    EXPECT_EQ(copy, value);
    expect_equal(hash, expected);
}

}  // namespace
}  // namespace mooncake::store
