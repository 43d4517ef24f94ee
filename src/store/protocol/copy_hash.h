// SPDX-License-Identifier: Apache-2.0
// Each file that includes it gets its own copy, made for its own instructions.
#pragma once

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace {

/// Copies and hashes block by block, so that each is hashed while it is in the first-level cache.
[[maybe_unused]] uint64_t copy_and_hash_blocks(std::byte* to, const std::byte* from, size_t length) noexcept {
    constexpr size_t kBlock = 4096, kOneGo = 2 * kBlock;
    if (length <= kOneGo) {
        std::memcpy(to, from, length);
        return XXH3_64bits(to, length);
    }
    XXH3_state_t state;
    XXH3_64bits_reset(&state);
    for (size_t at = 0; at < length;) {
        const size_t block = length - at < kBlock ? length - at : kBlock;
        std::memcpy(to + at, from + at, block);
        XXH3_64bits_update(&state, to + at, block);
        at += block;
    }
    return XXH3_64bits_digest(&state);
}

}  // namespace
