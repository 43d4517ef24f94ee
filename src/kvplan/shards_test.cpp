// SPDX-License-Identifier: Apache-2.0
#include "kvplan/shards.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "kvplan/testing/sides.h"

namespace mooncake::kvplan::testing {
namespace {

constexpr uint32_t kHeads = 12;
constexpr uint32_t kBlock = 4;

ShardGrid grid_of(const std::vector<std::vector<PartSpec>>& stages, uint32_t cuts) {
    ShardGrid grid{.stages = {}, .block_tokens = kBlock};
    for (const auto& stage : stages) {
        grid.stages.push_back({.parts = {}, .head_cuts = std::min(cuts, stage[0].total_heads)});
        for (const PartSpec& part : stage) grid.stages.back().parts.push_back({part.layer, part.part, part.total_heads, part.cell_bytes});
    }
    return grid;
}

using Store = std::map<std::string, std::vector<uint8_t>>;

void copy(const PairPlan& pair, const Rank& from, uint8_t* from_memory, const Rank& to, uint8_t* to_memory) {
    expand(pair, from, to, "", 16, [&](std::span<const Piece> pieces) {
        for (const Piece& piece : pieces) std::memcpy(to_memory + piece.target, from_memory + piece.source, piece.bytes);
    });
}

Store write_blocks(const ShardGrid& grid, Side& side, uint64_t blocks) {
    Store store;
    for (uint64_t block = 0; block < blocks; ++block) {
        const auto shards = shards_of_block(grid, "key" + std::to_string(block)).value();
        const std::vector<RankBlocks> tables(shards.size(), shard_blocks(grid, block));
        const auto plan = make_plan_of_writes(
            side.ranks, shards,
            {.seed = block, .first_token = block * kBlock, .tokens = kBlock, .source_blocks = side.blocks, .target_blocks = tables});
        EXPECT_TRUE(plan) << plan.error().to_string();
        for (const PairPlan& pair : plan->pairs) {
            const Rank& shard = shards[pair.target];
            EXPECT_EQ(pair.bytes, value_bytes(shard));
            auto& value = store[shard.segment];
            EXPECT_TRUE(value.empty()) << "written twice";
            value.resize(value_bytes(shard));
            copy(pair, side.ranks[pair.source], side.memory[pair.source].data() - Side::memory_base(pair.source), shard, value.data());
        }
    }
    return store;
}

/// What is wrong in the reader's memory, after it read every block by itself.
std::string read_blocks(const ShardGrid& grid, Store& store, Side& side, uint64_t blocks) {
    for (uint64_t block = 0; block < blocks; ++block) {
        const auto shards = shards_of_block(grid, "key" + std::to_string(block)).value();
        const std::vector<RankBlocks> tables(shards.size(), shard_blocks(grid, block));
        for (uint32_t rank = 0; rank < side.ranks.size(); ++rank) {
            const auto plan = make_plan(
                shards, side.ranks,
                {.seed = 0, .first_token = block * kBlock, .tokens = kBlock, .source_blocks = tables, .target_blocks = side.blocks},
                std::span(&rank, 1));
            if (!plan) return plan.error().to_string();
            for (const PairPlan& pair : plan->pairs) {
                auto& value = store.at(shards[pair.source].segment);
                copy(pair, shards[pair.source], value.data(), side.ranks[rank], side.memory[rank].data() - Side::memory_base(rank));
            }
        }
    }
    for (const Cell& cell : cells_of_tokens(side, {0, blocks * kBlock})) {
        for (uint64_t i = 0; i < cell.region->cell_bytes; ++i) {
            if (*side.at(cell.rank, cell.address + i) != byte_of(seed_of(*cell.region, cell.head, cell.token), i))
                return cell.region->layer;
        }
    }
    return {};
}

TEST(Shards, WhatAnyParallelismWroteAnyOtherReads) {
    std::vector<PartSpec> first = attention(2, kHeads, 6), second = attention(1, kHeads, 6, 2);
    const std::vector<PartSpec> latent = {{.layer = "model.layers.2", .part = "latent", .total_heads = 1, .cell_bytes = 9}};
    std::vector<PartSpec> all = first;
    all.insert(all.end(), second.begin(), second.end());
    all.insert(all.end(), latent.begin(), latent.end());
    const uint32_t parallelisms[] = {1, 2, 3, 4, 6, 24};
    const ShardGrid grid = grid_of({first, second, latent}, head_cuts_for(kHeads, parallelisms).value());
    EXPECT_EQ(grid.stages[0].head_cuts, 12u);
    std::mt19937_64 random(5);
    constexpr uint64_t kBlocks = 3;
    for (const uint32_t writer : parallelisms) {
        SideSpec spec{.tp = writer, .stages = {first, second, latent}, .block_tokens = {8}, .order = Order::kHeadMajor};
        if (writer % 2 == 0) spec.stages = {all};
        Side side = make_side(spec, {0, kBlocks * kBlock}, random);
        fill(side, {0, kBlocks * kBlock});
        Store store = write_blocks(grid, side, kBlocks);
        EXPECT_EQ(store.size(), kBlocks * (2 * 12 + 1));
        for (const uint32_t reader : parallelisms) {
            const SideSpec other{.tp = reader, .stages = {all}, .block_tokens = {2}, .padding = 1};
            Side target = make_side(other, {0, kBlocks * kBlock}, random);
            EXPECT_EQ(read_blocks(grid, store, target, kBlocks), "") << writer << " to " << reader;
        }
    }
}

TEST(Shards, TheFewestCutsThatNobodyHoldsInPart) {
    const auto cuts = [](uint32_t heads, std::vector<uint32_t> ranks) { return head_cuts_for(heads, ranks).value(); };
    EXPECT_EQ(cuts(8, {8, 4}), 8u);
    EXPECT_EQ(cuts(8, {4, 2}), 4u);
    EXPECT_EQ(cuts(8, {1}), 1u);
    EXPECT_EQ(cuts(12, {6, 4}), 12u);
    EXPECT_EQ(cuts(12, {2, 3}), 6u);
    EXPECT_EQ(cuts(4, {16}), 4u);  // replicas
    EXPECT_EQ(cuts(1, {8}), 1u);
    EXPECT_EQ(cuts(8, {}), 1u);
    EXPECT_FALSE(head_cuts_for(0, {}));
    const uint32_t none = 0;
    EXPECT_FALSE(head_cuts_for(8, std::span(&none, 1)));
}

TEST(Shards, AGridThatCutsElsewhereIsRefused) {
    const std::vector<PartSpec> parts = attention(1, 8, 4);
    std::mt19937_64 random(1);
    const Side side = make_side({.tp = 8, .stages = {parts}}, {0, kBlock}, random);
    const ShardGrid grid = grid_of({parts}, 4);
    const auto shards = shards_of_block(grid, "k").value();
    EXPECT_EQ(shards[3].segment, "k/s0of1/h3of4");
    const std::vector<RankBlocks> tables(shards.size(), shard_blocks(grid, 0));
    const auto plan = make_plan_of_writes(
        side.ranks, shards, {.seed = 0, .first_token = 0, .tokens = kBlock, .source_blocks = side.blocks, .target_blocks = tables});
    ASSERT_FALSE(plan);
    EXPECT_EQ(plan.error().code(), Code::kNotSupported);
    EXPECT_FALSE(shards_of_block(grid_of({parts}, 0), "k"));
    ShardGrid mixed = grid;
    mixed.stages[0].parts[1].total_heads = 4;
    EXPECT_FALSE(shards_of_block(mixed, "k"));
    ShardGrid empty = grid;
    empty.block_tokens = 0;
    EXPECT_FALSE(shards_of_block(empty, "k"));
}

}  // namespace
}  // namespace mooncake::kvplan::testing
