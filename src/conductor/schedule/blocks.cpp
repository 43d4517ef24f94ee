// SPDX-License-Identifier: Apache-2.0
#include "conductor/schedule/blocks.h"

#include <xxhash.h>

#include <array>
#include <bit>

namespace mooncake::conductor {

static_assert(std::endian::native == std::endian::little, "tokens are hashed as they lie in memory");

namespace {

std::vector<BlockHash> hash_chain(const char* data, size_t bytes, size_t block_bytes, uint64_t seed) {
    std::vector<BlockHash> hashes;
    if (block_bytes == 0) return hashes;
    hashes.reserve(bytes / block_bytes);
    for (size_t at = 0; at + block_bytes <= bytes; at += block_bytes) {
        const uint64_t local = XXH3_64bits_withSeed(data + at, block_bytes, seed);
        if (hashes.empty()) {
            hashes.push_back(local);
            continue;
        }
        const std::array<uint64_t, 2> link{hashes.back(), local};
        hashes.push_back(XXH3_64bits_withSeed(link.data(), sizeof(link), seed));
    }
    return hashes;
}

}  // namespace

std::vector<BlockHash> hash_tokens(std::span<const uint32_t> tokens, uint32_t block_tokens, uint64_t seed) {
    return hash_chain(reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes(), size_t{block_tokens} * sizeof(uint32_t), seed);
}

std::vector<BlockHash> hash_text(std::string_view text, uint32_t block_bytes, uint64_t seed) {
    return hash_chain(text.data(), text.size(), block_bytes, seed);
}

}  // namespace mooncake::conductor
