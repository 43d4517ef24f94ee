// SPDX-License-Identifier: Apache-2.0
#include "kvplan/shards.h"

#include <algorithm>

#include "kvplan/ownership.h"

namespace mooncake::kvplan {
namespace {

constexpr uint32_t kCutsMax = 65536;
constexpr uint64_t kCellMax = uint64_t{1} << 30;

/// Whether every border between ranks is one between shards of so many heads.
bool borders_fit(uint32_t total_heads, uint32_t shard_heads, uint32_t ranks) {
    for (uint64_t rank = 1; rank < ranks; ++rank) {
        if (rank * total_heads / ranks % shard_heads != 0) return false;
    }
    return true;
}

Rank make_shard(const ShardGrid& grid, std::string_view key, uint32_t stage, uint32_t cut) {
    Rank shard;
    shard.segment = shard_name(grid, key, stage, cut);
    uint64_t end = 0;
    for (const StoredPart& part : grid.stages[stage].parts) {
        const HeadRange heads = heads_of_rank(part.total_heads, grid.stages[stage].head_cuts, cut).value();
        Region region;
        region.layer = part.layer;
        region.part = part.part;
        region.base = end;
        region.blocks = 1;
        region.block_tokens = grid.block_tokens;
        region.cell_bytes = part.cell_bytes;
        region.token_stride = part.cell_bytes;
        region.head_stride = part.cell_bytes * grid.block_tokens;
        region.block_stride = region.head_stride * heads.count;
        region.length = region.block_stride;
        region.first_head = heads.first;
        region.heads = heads.count;
        region.total_heads = part.total_heads;
        end += region.length;
        shard.regions.push_back(std::move(region));
    }
    return shard;
}

Result<> check_stage(const ShardStage& stage) {
    for (const StoredPart& part : stage.parts) {
        if (part.total_heads != stage.parts[0].total_heads) {
            return fail(Code::kInvalidArgument, "layer '{}' part '{}' has another number of heads than its stage", part.layer, part.part);
        }
        if (part.cell_bytes == 0 || part.cell_bytes > kCellMax) {
            return fail(Code::kInvalidArgument, "layer '{}' part '{}': cells of {} bytes", part.layer, part.part, part.cell_bytes);
        }
        // More cuts than heads would store a head twice.
        if (stage.head_cuts == 0 || stage.head_cuts > part.total_heads || stage.head_cuts > kCutsMax) {
            return fail(Code::kInvalidArgument, "layer '{}' part '{}': {} heads are not cut in {}", part.layer, part.part, part.total_heads,
                        stage.head_cuts);
        }
    }
    return {};
}

}  // namespace

Result<uint32_t> head_cuts_for(uint32_t total_heads, std::span<const uint32_t> tensor_parallelisms) {
    if (total_heads == 0 || total_heads > kCutsMax) return fail(Code::kInvalidArgument, "a model of {} heads", total_heads);
    for (const uint32_t ranks : tensor_parallelisms) {
        if (ranks == 0 || ranks > kCutsMax) return fail(Code::kInvalidArgument, "{} tensor-parallel ranks", ranks);
    }
    for (uint32_t cuts = 1; cuts < total_heads; ++cuts) {
        const auto fit = [&](uint32_t ranks) { return borders_fit(total_heads, total_heads / cuts, ranks); };
        if (total_heads % cuts == 0 && std::all_of(tensor_parallelisms.begin(), tensor_parallelisms.end(), fit)) return cuts;
    }
    return total_heads;
}

std::string shard_name(const ShardGrid& grid, std::string_view key, uint32_t stage, uint32_t cut) {
    return format_text("{}/s{}of{}/h{}of{}", key, stage, grid.stages.size(), cut, grid.stages[stage].head_cuts);
}

Result<std::vector<Rank>> shards_of_block(const ShardGrid& grid, std::string_view key) {
    if (grid.block_tokens == 0) return fail(Code::kInvalidArgument, "stored blocks of 0 tokens");
    for (const ShardStage& stage : grid.stages) MC_RETURN_IF_ERROR(check_stage(stage));
    std::vector<Rank> shards;
    for (uint32_t stage = 0; stage < grid.stages.size(); ++stage) {
        for (uint32_t cut = 0; cut < grid.stages[stage].head_cuts; ++cut) shards.push_back(make_shard(grid, key, stage, cut));
    }
    return shards;
}

uint64_t value_bytes(const Rank& shard) { return shard.regions.empty() ? 0 : shard.regions.back().base + shard.regions.back().length; }

RankBlocks shard_blocks(const ShardGrid& grid, uint64_t number) {
    return {{.first_token = number * grid.block_tokens, .blocks = {0}, .kept_from = 0}};
}

Result<Plan> make_plan_of_writes(std::span<const Rank> ranks, std::span<const Rank> shards, const Request& request) {
    MC_ASSIGN_OR_RETURN(Plan plan, make_plan(ranks, shards, request));
    for (size_t i = 0; i < shards.size(); ++i) {
        if (plan.sources_of[i] <= 1) continue;
        return fail(Code::kNotSupported, "shard '{}' is held by {} ranks together: the grid must cut wherever they do", shards[i].segment,
                    plan.sources_of[i]);
    }
    return plan;
}

}  // namespace mooncake::kvplan
