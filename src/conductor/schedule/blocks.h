// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace mooncake::conductor {

/// Names one block of a prompt and, because it is chained, all that stands before it.
using BlockHash = uint64_t;

/// The chained hashes of whole blocks: local = XXH3-64 of the tokens as little-endian 32-bit words, seq[0] = local[0], seq[i] = XXH3-64 of
/// seq[i-1] and local[i]. A last block that is not full has none: an engine does not share it either.
std::vector<BlockHash> hash_tokens(std::span<const uint32_t> tokens, uint32_t block_tokens, uint64_t seed);
/// One link of that chain; `before`: the hash of the block in front, null for the first.
BlockHash hash_block(const BlockHash* before, std::span<const uint32_t> tokens, uint64_t seed);
/// Blocks of different models have nothing in common: XXH3-64 of the name.
uint64_t seed_of_model(std::string_view model);
/// The same chain over a text whose tokens we do not know: pieces of `block_bytes` take the place of blocks.
std::vector<BlockHash> hash_text(std::string_view text, uint32_t block_bytes, uint64_t seed);

}  // namespace mooncake::conductor
