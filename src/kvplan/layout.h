// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

/// How a KV cache lies in the memory of ranks (docs/kvplan.md). Plain data.
namespace mooncake::kvplan {

/// Cells of one part of one layer. The cell of (block, slot, head) lies at
/// `base + block * block_stride + slot * token_stride + (head - first_head) * head_stride` and has `cell_bytes` bytes.
struct Region {
    std::string layer;  // the model's name of it: what both sides agree about
    std::string part;   // "k", "v", "kv", "latent", ...; with the layer unique within a rank and an interval of heads
    uint64_t base = 0;
    uint64_t length = 0;  // bytes from `base` on: no cell lies beyond
    uint64_t blocks = 0;
    uint32_t block_tokens = 0;  // slots of a block; the same throughout a group
    uint64_t block_stride = 0, token_stride = 0, head_stride = 0;
    uint64_t cell_bytes = 0;
    uint32_t first_head = 0, heads = 0;  // that this rank holds
    uint32_t total_heads = 0;            // of the model
    uint32_t rows = 0;   // not 0: a state of so many rows `token_stride` apart, in one block per request, whatever its tokens
    uint32_t group = 0;  // which of the rank's block tables names its blocks
};

/// Where one process of a side keeps its share.
struct Rank {
    std::string segment;               // what the engine connects to
    uint32_t stripes = 1, stripe = 0;  // of the tokens
    uint32_t stripe_tokens = 1;        // neighbouring tokens that stay together in a stripe
    std::vector<Region> regions;
};

/// The blocks of one request in one group of a rank, in the order of its tokens. A group of states has one block: the slot.
struct BlockTable {
    uint64_t first_token =
        0;  // that the first slot of blocks[0] is for, among the rank's own (local positions); a multiple of block_tokens
    std::vector<uint64_t> blocks;
    uint64_t kept_from = 0;  // tokens of the request before this one are not wanted by a target (a sliding window)
};

/// The block tables of one request at one rank, by group.
using RankBlocks = std::vector<BlockTable>;

}  // namespace mooncake::kvplan
