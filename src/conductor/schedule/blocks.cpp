// SPDX-License-Identifier: Apache-2.0
#include "conductor/schedule/blocks.h"

#include <xxhash.h>

#include <array>
#include <bit>

namespace mooncake::conductor {

static_assert(std::endian::native == std::endian::little, "tokens are hashed as they lie in memory");

namespace {

BlockHash hash_link(const BlockHash* before, const char* data, size_t bytes, uint64_t seed) {
    const uint64_t local = XXH3_64bits_withSeed(data, bytes, seed);
    if (before == nullptr) return local;
    const std::array<uint64_t, 2> link{*before, local};
    return XXH3_64bits_withSeed(link.data(), sizeof(link), seed);
}

std::vector<BlockHash> hash_chain(const char* data, size_t bytes, size_t block_bytes, uint64_t seed) {
    std::vector<BlockHash> hashes;
    if (block_bytes == 0) return hashes;
    hashes.reserve(bytes / block_bytes);
    for (size_t at = 0; at + block_bytes <= bytes; at += block_bytes) {
        hashes.push_back(hash_link(hashes.empty() ? nullptr : &hashes.back(), data + at, block_bytes, seed));
    }
    return hashes;
}

}  // namespace

std::vector<BlockHash> hash_tokens(std::span<const uint32_t> tokens, uint32_t block_tokens, uint64_t seed) {
    return hash_chain(reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes(), size_t{block_tokens} * sizeof(uint32_t), seed);
}

BlockHash hash_block(const BlockHash* before, std::span<const uint32_t> tokens, uint64_t seed) {
    return hash_link(before, reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes(), seed);
}

uint64_t seed_of_model(std::string_view model) { return model.empty() ? 0 : XXH3_64bits(model.data(), model.size()); }

std::vector<BlockHash> hash_text(std::string_view text, uint32_t block_bytes, uint64_t seed) {
    return hash_chain(text.data(), text.size(), block_bytes, seed);
}

}  // namespace mooncake::conductor
