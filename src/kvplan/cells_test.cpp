// SPDX-License-Identifier: Apache-2.0
#include "kvplan/cells.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace mooncake::kvplan {
namespace {

/// Every byte, the long way round.
std::set<int64_t> bytes_of(const Cells& cells, int64_t at, uint32_t skip = 0) {
    std::set<int64_t> bytes;
    if (skip == cells.size) {
        for (uint64_t i = 0; i < cells.bytes; ++i) bytes.insert(at + static_cast<int64_t>(i));
        return bytes;
    }
    for (uint64_t i = 0; i < cells.dimensions[skip].count; ++i) {
        bytes.merge(bytes_of(cells, at + static_cast<int64_t>(i * cells.dimensions[skip].stride), skip + 1));
    }
    return bytes;
}

bool share_a_byte(const Cells& a, const Cells& b, int64_t offset) {
    const std::set<int64_t> of_a = bytes_of(a, 0);
    for (const int64_t byte : bytes_of(b, offset)) {
        if (of_a.count(byte) != 0) return true;
    }
    return false;
}

Cells random_cells(std::mt19937_64& random, const uint64_t* strides) {
    Cells cells;
    cells.bytes = 1 + random() % 4;
    for (int i = 0; i < 3; ++i) {
        // Sometimes the stride that the other one has too, if it fits.
        const uint64_t own = cells.extent() + random() % 6;
        cells.add(1 + random() % 4, strides[i] >= cells.extent() && random() % 3 != 0 ? strides[i] : own);
    }
    return cells;
}

TEST(Cells, AreDisjointExactlyIfNoByteBelongsToBoth) {
    std::mt19937_64 random(17);
    int disjoint = 0, interleaved = 0;
    for (int round = 0; round < 20000; ++round) {
        const uint64_t strides[] = {4 + random() % 6, 20 + random() % 20, 100 + random() % 100};
        const Cells a = random_cells(random, strides), b = random_cells(random, strides);
        ASSERT_TRUE(is_nested(a) && is_nested(b));
        const auto reach = static_cast<int64_t>(a.extent() + b.extent());
        const int64_t offset = static_cast<int64_t>(random() % static_cast<uint64_t>(reach)) - static_cast<int64_t>(b.extent());
        ASSERT_EQ(are_disjoint(a, b, offset), !share_a_byte(a, b, offset)) << "round " << round;
        if (share_a_byte(a, b, offset)) continue;
        ++disjoint;
        interleaved += offset < static_cast<int64_t>(a.extent()) && -offset < static_cast<int64_t>(b.extent()) ? 1 : 0;
    }
    EXPECT_GT(disjoint, 1000);
    EXPECT_GT(interleaved, 1000);
}

TEST(Cells, ManyElementsThatCannotBeToldApartCountAsShared) {
    Cells wide, narrow;
    wide.bytes = narrow.bytes = 1;
    wide.add(1000, 10);
    narrow.add(5000, 2);
    EXPECT_FALSE(are_disjoint(wide, narrow, 1));  // odd and even bytes: nobody lays a cache out so
}

TEST(Cells, NestedIffEveryDimensionStepsOverWhatLiesWithin) {
    Cells cells;
    cells.bytes = 4;
    cells.add(3, 4);
    cells.add(2, 12);
    EXPECT_TRUE(is_nested(cells));
    EXPECT_EQ(cells.extent(), 24u);
    cells.add(2, 23);
    EXPECT_FALSE(is_nested(cells));
    Cells one;
    one.bytes = 4;
    one.add(1, 0);  // strides of single elements do not matter
    EXPECT_TRUE(is_nested(one));
    one.add(2, 3);
    EXPECT_FALSE(is_nested(one));
}

}  // namespace
}  // namespace mooncake::kvplan
