// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace mooncake::store {

/// A small seeded generator: the same seed gives the same choices everywhere. Not for secrets.
class Random {
public:
    explicit Random(uint64_t seed) noexcept : state_(seed) {}

    uint64_t next() noexcept {
        uint64_t value = (state_ += 0x9e3779b97f4a7c15);
        value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
        value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
        return value ^ (value >> 31);
    }
    /// Below `limit`; 0 for limit 0.
    uint64_t below(uint64_t limit) noexcept { return static_cast<uint64_t>((static_cast<unsigned __int128>(next()) * limit) >> 64); }

private:
    uint64_t state_;
};

}  // namespace mooncake::store
