// SPDX-License-Identifier: Apache-2.0
#include "kvplan/testing/sides.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "kvplan/ownership.h"

namespace mooncake::kvplan::testing {
namespace {

constexpr uint64_t kSpareBlocks = 2;

struct Shape {
    uint64_t slots = 1, in_block = 0;  // bytes that one block takes (heads outside: of one head)
};

uint64_t own_tokens_before(const Rank& rank, uint64_t token) {
    uint64_t count = 0;
    for (uint64_t t = 0; t < token; ++t) count += t / rank.stripe_tokens % rank.stripes == rank.stripe ? 1 : 0;
    return count;
}

Shape set_strides(const SideSpec& spec, Region& region) {
    Shape shape{region.rows != 0 ? region.rows : region.block_tokens, 0};
    if (spec.order == Order::kTokenMajor) {
        region.head_stride = region.cell_bytes + spec.padding;
        region.token_stride = region.head_stride * region.heads + spec.padding;
        shape.in_block = region.token_stride * shape.slots + spec.padding;
    } else {
        region.token_stride = region.cell_bytes + spec.padding;
        region.head_stride = region.token_stride * shape.slots + spec.padding;
        shape.in_block = spec.order == Order::kHeadMajor ? region.head_stride * region.heads + spec.padding : region.head_stride;
    }
    return shape;
}

/// Places the regions of one group behind `end`; returns the new end.
uint64_t place_group(const SideSpec& spec, std::vector<Region*>& regions, uint64_t end) {
    std::vector<Shape> shapes;
    for (Region* region : regions) shapes.push_back(set_strides(spec, *region));
    if (spec.parts_inside_blocks && spec.order != Order::kHeadsOutside) {
        uint64_t stride = 0;
        for (size_t i = 0; i < regions.size(); ++i) {
            regions[i]->base = end + stride;
            stride += shapes[i].in_block;
        }
        for (Region* region : regions) region->block_stride = stride;
    } else {
        uint64_t base = end;
        for (size_t i = 0; i < regions.size(); ++i) {
            Region& region = *regions[i];
            region.base = base;
            region.block_stride = shapes[i].in_block;
            if (spec.order == Order::kHeadsOutside) region.head_stride = region.block_stride * region.blocks + spec.padding;
            base += spec.order == Order::kHeadsOutside ? region.head_stride * region.heads : region.block_stride * region.blocks;
        }
    }
    for (Region* region : regions) {
        const uint64_t slots = region->rows != 0 ? region->rows : region->block_tokens;
        region->length = (region->blocks - 1) * region->block_stride + (slots - 1) * region->token_stride +
                         (region->heads - 1) * region->head_stride + region->cell_bytes;
        end = std::max(end, region->base + region->length);
    }
    return end;
}

BlockTable make_table(const Rank& rank, uint32_t block_tokens, bool state, Tokens tokens, std::mt19937_64& random) {
    BlockTable table;
    uint64_t count = 1;
    if (!state) {
        const uint64_t begin = own_tokens_before(rank, tokens.first), end = own_tokens_before(rank, tokens.first + tokens.count);
        const uint64_t first_block = begin / block_tokens - (begin / block_tokens == 0 ? 0 : random() % 2);
        table.first_token = first_block * block_tokens;
        count = (end + block_tokens - 1) / block_tokens - std::min(first_block, (end + block_tokens - 1) / block_tokens);
    }
    table.blocks.resize(count + kSpareBlocks);
    std::iota(table.blocks.begin(), table.blocks.end(), 0);
    // Sometimes in order, as fresh pools give them: neighbours can then merge.
    if (random() % 4 != 0) std::shuffle(table.blocks.begin(), table.blocks.end(), random);
    table.blocks.resize(count);
    return table;
}

void add_regions(const SideSpec& spec, const PartSpec& part, uint32_t tensor_rank, Rank& rank) {
    const HeadRange heads = heads_of_rank(part.total_heads, spec.tp, tensor_rank).value();
    Region region;
    region.layer = part.layer;
    region.part = part.part;
    region.cell_bytes = part.cell_bytes;
    region.total_heads = part.total_heads;
    region.rows = part.rows;
    region.group = part.group;
    region.block_tokens = spec.block_tokens[part.group];
    region.first_head = heads.first;
    region.heads = spec.region_per_head ? 1 : heads.count;
    for (uint32_t i = 0; i < heads.count; i += region.heads) {
        rank.regions.push_back(region);
        region.first_head += region.heads;
    }
}

void finish_rank(const SideSpec& spec, Rank& rank, Tokens tokens, std::mt19937_64& random, Side& side) {
    uint64_t end = Side::memory_base(side.ranks.size());
    RankBlocks tables;
    for (uint32_t group = 0; group < spec.block_tokens.size(); ++group) {
        std::vector<Region*> regions;
        for (Region& region : rank.regions) {
            if (region.group == group) regions.push_back(&region);
        }
        const bool state = !regions.empty() && regions[0]->rows != 0;
        tables.push_back(make_table(rank, spec.block_tokens[group], state, tokens, random));
        if (group < spec.kept_from.size()) tables.back().kept_from = spec.kept_from[group];
        for (Region* region : regions) region->blocks = tables.back().blocks.size() + kSpareBlocks;
        end = place_group(spec, regions, end);
    }
    std::vector<uint8_t> memory(end - Side::memory_base(side.ranks.size()));
    for (uint8_t& byte : memory) byte = static_cast<uint8_t>(random());
    side.memory.push_back(std::move(memory));
    side.blocks.push_back(std::move(tables));
    side.ranks.push_back(std::move(rank));
}

uint64_t mix(uint64_t value) {
    value = (value ^ (value >> 33)) * 0xff51afd7ed558ccd;
    return value ^ (value >> 33);
}

std::string describe(const Cell& cell, const Side& side) {
    return side.ranks[cell.rank].segment + " " + cell.region->layer + " " + cell.region->part + " head " + std::to_string(cell.head) +
           " token " + std::to_string(cell.token);
}

}  // namespace

Side make_side(const SideSpec& spec, Tokens tokens, std::mt19937_64& random) {
    Side side;
    for (const std::vector<PartSpec>& stage : spec.stages) {
        for (uint32_t tensor_rank = 0; tensor_rank < spec.tp; ++tensor_rank) {
            for (uint32_t stripe = 0; stripe < spec.stripes; ++stripe) {
                Rank rank;
                rank.segment = "rank" + std::to_string(side.ranks.size());
                rank.stripes = spec.stripes;
                rank.stripe = stripe;
                rank.stripe_tokens = spec.stripe_tokens;
                for (const PartSpec& part : stage) add_regions(spec, part, tensor_rank, rank);
                finish_rank(spec, rank, tokens, random, side);
            }
        }
    }
    return side;
}

uint64_t seed_of(const Region& region, uint32_t head, uint64_t token) {
    uint64_t value = 0;
    for (const char letter : region.layer) value = mix(value + static_cast<uint8_t>(letter));
    value = mix(value + 1000);
    for (const char letter : region.part) value = mix(value + static_cast<uint8_t>(letter));
    return mix(mix(value + head) + token);
}

uint8_t byte_of(uint64_t seed, uint64_t byte) { return static_cast<uint8_t>(mix(seed + byte) >> 13); }

std::vector<Cell> cells_of_tokens(const Side& side, Tokens tokens) {
    std::vector<Cell> cells;
    for (size_t number = 0; number < side.ranks.size(); ++number) {
        const Rank& rank = side.ranks[number];
        for (const Region& region : rank.regions) {
            const BlockTable& table = side.blocks[number][region.group];
            for (uint32_t head = region.first_head; head < region.first_head + region.heads; ++head) {
                const uint64_t at_head = region.base + (head - region.first_head) * region.head_stride;
                for (uint32_t row = 0; row < region.rows; ++row) {
                    cells.push_back(
                        {number, &region, head, row, at_head + table.blocks[0] * region.block_stride + row * region.token_stride});
                }
                if (region.rows != 0) continue;
                uint64_t local = own_tokens_before(rank, tokens.first);
                for (uint64_t token = tokens.first; token < tokens.first + tokens.count; ++token) {
                    if (token / rank.stripe_tokens % rank.stripes != rank.stripe) continue;
                    const uint64_t slot = local++ - table.first_token;
                    if (token < table.kept_from) continue;
                    cells.push_back({number, &region, head, token,
                                     at_head + table.blocks[slot / region.block_tokens] * region.block_stride +
                                         slot % region.block_tokens * region.token_stride});
                }
            }
        }
    }
    return cells;
}

void fill(Side& side, Tokens tokens) {
    for (const Cell& cell : cells_of_tokens(side, tokens)) {
        const uint64_t seed = seed_of(*cell.region, cell.head, cell.token);
        for (uint64_t i = 0; i < cell.region->cell_bytes; ++i) *side.at(cell.rank, cell.address + i) = byte_of(seed, i);
    }
}

std::string carry_out(const Plan& plan, Side& source, Side& target, Tokens tokens, size_t pieces_max) {
    const std::vector<std::vector<uint8_t>> before = target.memory;
    std::vector<std::vector<uint8_t>> writes;
    for (const auto& memory : target.memory) writes.emplace_back(memory.size());
    std::string wrong;
    for (const PairPlan& pair : plan.pairs) {
        uint64_t bytes = 0, pieces_seen = 0;
        const uint64_t pieces = expand(
            pair, source.ranks[pair.source], target.ranks[pair.target], "", pieces_max, [&](std::span<const Piece> some) {
                if (some.size() > pieces_max) wrong = "too many pieces at a time";
                pieces_seen += some.size();
                for (const Piece& piece : some) {
                    bytes += piece.bytes;
                    const uint64_t from = piece.source - Side::memory_base(pair.source), to = piece.target - Side::memory_base(pair.target);
                    if (from + piece.bytes > source.memory[pair.source].size() || to + piece.bytes > target.memory[pair.target].size()) {
                        wrong = "a piece outside the memory";
                        return;
                    }
                    std::memcpy(target.memory[pair.target].data() + to, source.memory[pair.source].data() + from, piece.bytes);
                    for (uint64_t i = 0; i < piece.bytes; ++i) ++writes[pair.target][to + i];
                }
            });
        if (bytes != pair.bytes) wrong = "the pair's bytes are not what it moves";
        if (pieces != pieces_seen) wrong = "the number of pieces is not what was emitted";
    }
    if (!wrong.empty()) return wrong;
    for (const Cell& cell : cells_of_tokens(target, tokens)) {
        const uint64_t seed = seed_of(*cell.region, cell.head, cell.token);
        for (uint64_t i = 0; i < cell.region->cell_bytes; ++i) {
            const uint64_t at = cell.address + i - Side::memory_base(cell.rank);
            if (writes[cell.rank][at] != 1) return describe(cell, target) + ": written " + std::to_string(writes[cell.rank][at]) + " times";
            if (target.memory[cell.rank][at] != byte_of(seed, i)) return describe(cell, target) + ": another byte";
            writes[cell.rank][at] = 0;
        }
    }
    for (size_t rank = 0; rank < writes.size(); ++rank) {
        if (std::any_of(writes[rank].begin(), writes[rank].end(), [](uint8_t count) { return count != 0; }))
            return "something else was written";
    }
    return {};
}

Request request_of(const Side& source, const Side& target, Tokens tokens, uint64_t seed) {
    return {
        .seed = seed, .first_token = tokens.first, .tokens = tokens.count, .source_blocks = source.blocks, .target_blocks = target.blocks};
}

std::string move_all(const SideSpec& source_spec, const SideSpec& target_spec, Tokens tokens, uint64_t seed) {
    std::mt19937_64 random(seed);
    Side source = make_side(source_spec, tokens, random), target = make_side(target_spec, tokens, random);
    fill(source, tokens);
    const auto plan = make_plan(source.ranks, target.ranks, request_of(source, target, tokens, seed));
    if (!plan) return plan.error().to_string();
    return carry_out(*plan, source, target, tokens, 1 + seed % 50);
}

std::vector<PartSpec> attention(uint32_t layers, uint32_t heads, uint64_t cell_bytes, uint32_t first_layer) {
    std::vector<PartSpec> parts;
    for (uint32_t i = 0; i < layers; ++i) {
        const std::string name = "model.layers." + std::to_string(first_layer + i);
        for (const char* part : {"k", "v"}) parts.push_back({.layer = name, .part = part, .total_heads = heads, .cell_bytes = cell_bytes});
    }
    return parts;
}

}  // namespace mooncake::kvplan::testing
