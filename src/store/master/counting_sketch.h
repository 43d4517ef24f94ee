// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace mooncake::store {

/// How often things were seen lately, about: never less than that, seldom more. Counts halve after a while, so that what was seen long ago is
/// forgotten. 256 KiB once it is used. Not thread-safe.
class CountingSketch {
public:
    /// Counts it, and returns how often it was seen with this time.
    uint32_t add(uint64_t thing) {
        if (counters_.empty()) counters_.resize(kRows * kColumns);
        std::array<uint8_t*, kRows> mine;
        uint8_t least = UINT8_MAX;
        uint64_t hash = thing;
        for (uint8_t*& counter : mine) {
            hash = (hash ^ hash >> 32) * 0x9e3779b97f4a7c15 + 1;
            counter = &counters_[static_cast<size_t>(&counter - mine.data()) * kColumns + (hash >> 40) % kColumns];
            least = std::min(least, *counter);
        }
        for (uint8_t* counter : mine)
            if (*counter == least && least != UINT8_MAX) ++*counter;
        if (++added_ == kForgetAfter) forget_half();
        return least == UINT8_MAX ? least : least + 1u;
    }
    /// It is of no interest any more.
    void forget(uint64_t thing) {
        if (counters_.empty()) return;
        uint64_t hash = thing;
        for (size_t row = 0; row < kRows; ++row) {
            hash = (hash ^ hash >> 32) * 0x9e3779b97f4a7c15 + 1;
            counters_[row * kColumns + (hash >> 40) % kColumns] = 0;
        }
    }

private:
    static constexpr size_t kRows = 4, kColumns = 1 << 16;
    static constexpr uint32_t kForgetAfter = 8 * kColumns;

    void forget_half() {
        for (uint8_t& counter : counters_) counter /= 2;
        added_ = 0;
    }

    std::vector<uint8_t> counters_;
    uint32_t added_ = 0;
};

}  // namespace mooncake::store
