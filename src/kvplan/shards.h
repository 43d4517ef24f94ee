// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "kvplan/layout.h"
#include "kvplan/plan.h"

/// Stored blocks that any parallelism can read, whichever wrote them: a block is cut into shards by a grid that all who share the store agree about, and each shard is
/// a value of its own name. To the planner a shard is a rank whose addresses are offsets in its value.
namespace mooncake::kvplan {

struct StoredPart {
    std::string layer, part;
    uint32_t total_heads = 0;
    uint64_t cell_bytes = 0;
};

/// What is stored together, in the model's order: cut wherever somebody's pipeline is. All parts have the same number of heads, because they are
/// cut alike: latents, and layers of another number of heads, are stages of their own.
struct ShardStage {
    std::vector<StoredPart> parts;
    uint32_t head_cuts = 1;  // how many shards the heads are cut into
};

struct ShardGrid {
    std::vector<ShardStage> stages;
    uint32_t block_tokens = 0;  // of a stored block
};

/// The smallest number of equal shards with which no rank of any of these tensor parallelisms holds a shard in part.
MC_EXPORT Result<uint32_t> head_cuts_for(uint32_t total_heads, std::span<const uint32_t> tensor_parallelisms);

/// "KEY/s1of4/h3of8". The numbers of the grid are in it, so that blocks of another grid are missed rather than misread.
MC_EXPORT std::string shard_name(const ShardGrid& grid, std::string_view key, uint32_t stage, uint32_t cut);

/// The shards of the block with this key, by stage, then cut. A value lies as layer, part, head, token, without gaps; it is `value_bytes()` long.
MC_EXPORT Result<std::vector<Rank>> shards_of_block(const ShardGrid& grid, std::string_view key);
MC_EXPORT uint64_t value_bytes(const Rank& shard);
/// The block table of a shard: the block is the `number`-th of its request.
MC_EXPORT RankBlocks shard_blocks(const ShardGrid& grid, uint64_t number);

/// As make_plan(), with shards as targets. Each has one source: ranks with the same heads take turns by the seed. kNotSupported: the grid cuts
/// elsewhere than the ranks do, so that nobody holds a whole shard. Reading needs nothing of its own: the shards are the sources of a plan.
MC_EXPORT Result<Plan> make_plan_of_writes(std::span<const Rank> ranks, std::span<const Rank> shards, const Request& request);

}  // namespace mooncake::kvplan
