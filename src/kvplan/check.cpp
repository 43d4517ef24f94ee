// SPDX-License-Identifier: Apache-2.0
#include "kvplan/check.h"

#include <algorithm>

#include "kvplan/cells.h"

namespace mooncake::kvplan {
namespace {

Unexpected refuse(const Rank& rank, const Region& region, std::string_view why) {
    return fail(Code::kInvalidArgument, "rank '{}' {}: {}", rank.segment, place_of(region), why);
}

Result<> check_region(const Rank& rank, const Region& region) {
    if (region.cell_bytes == 0) return refuse(rank, region, "cells of 0 bytes");
    if (region.heads == 0) return refuse(rank, region, "no heads");
    if (uint64_t{region.first_head} + region.heads > region.total_heads) return refuse(rank, region, "heads beyond those of the model");
    if (region.blocks == 0) return refuse(rank, region, "no blocks");
    if (region.block_tokens == 0 && region.rows == 0) return refuse(rank, region, "blocks of 0 tokens");
    if (region.base + region.length < region.base) return refuse(rank, region, "memory beyond the end of all addresses");
    const auto extent = extent_of(region);
    if (!extent || *extent > region.length) return refuse(rank, region, "the last cell lies outside the region");
    if (!is_nested(cells_of(region))) return refuse(rank, region, "strides that let cells overlap");
    return {};
}

bool by_name_and_head(const Region* a, const Region* b) {
    if (const int order = a->layer.compare(b->layer); order != 0) return order < 0;
    if (const int order = a->part.compare(b->part); order != 0) return order < 0;
    return a->first_head < b->first_head;
}

Result<> check_heads_held_once(const Rank& rank) {
    std::vector<const Region*> regions;
    regions.reserve(rank.regions.size());
    for (const Region& region : rank.regions) regions.push_back(&region);
    std::sort(regions.begin(), regions.end(), by_name_and_head);
    for (size_t i = 1; i < regions.size(); ++i) {
        const Region &last = *regions[i - 1], &next = *regions[i];
        if (last.layer != next.layer || last.part != next.part) continue;
        if (last.first_head + last.heads > next.first_head) {
            return fail(Code::kInvalidArgument, "rank '{}' {}: head {} lies in two regions", rank.segment, place_of(next), next.first_head);
        }
    }
    return {};
}

/// The first region of each group decides what the others must be like.
Result<> check_groups(const Rank& rank) {
    std::vector<const Region*> first_of;
    for (const Region& region : rank.regions) {
        if (region.group >= kGroupsMax) return refuse(rank, region, "a group number beyond the largest");
        if (region.group >= first_of.size()) first_of.resize(region.group + 1, nullptr);
        const Region*& first = first_of[region.group];
        if (first == nullptr) first = &region;
        if ((first->rows == 0) != (region.rows == 0))
            return refuse(rank, region, "a state in a group of tokens, or tokens in a group of states");
        if (region.rows == 0 && first->block_tokens != region.block_tokens)
            return refuse(rank, region, "another block_tokens than its group");
    }
    return {};
}

/// The blocks of the table that hold own tokens of the range.
struct Use {
    uint64_t first = 0, end = 0;  // in the table
};
Use use_of(const Rank& rank, const Region& region, const BlockTable& table, TokenRange range) {
    if (region.rows != 0) return {0, 1};
    const Stripe stripe = stripe_of(rank);
    const uint64_t begin = stripe.position(range.first), end = stripe.position(range.end);
    if (begin == end) return {};
    return {(begin - table.first_token) / region.block_tokens, (end - 1 - table.first_token) / region.block_tokens + 1};
}

const Region* first_of_group(const Rank& rank, uint32_t group) {
    const auto found = std::find_if(rank.regions.begin(), rank.regions.end(), [&](const Region& region) { return region.group == group; });
    return found == rank.regions.end() ? nullptr : &*found;
}

}  // namespace

std::string place_of(const Region& region) { return format_text("layer '{}' part '{}'", region.layer, region.part); }

Result<> check_rank(const Rank& rank) {
    if (rank.stripes == 0 || rank.stripes > kStripesMax || rank.stripe >= rank.stripes || rank.stripe_tokens == 0) {
        return fail(Code::kInvalidArgument, "rank '{}': stripe {} of {}, {} tokens each", rank.segment, rank.stripe, rank.stripes,
                    rank.stripe_tokens);
    }
    for (const Region& region : rank.regions) MC_RETURN_IF_ERROR(check_region(rank, region));
    MC_RETURN_IF_ERROR(check_groups(rank));
    return check_heads_held_once(rank);
}

Result<> check_blocks(const Rank& rank, const RankBlocks& blocks, uint32_t group, TokenRange range) {
    const Region* region = first_of_group(rank, group);
    if (region == nullptr) return {};
    if (group >= blocks.size()) return fail(Code::kInvalidArgument, "rank '{}': no block table for group {}", rank.segment, group);
    const BlockTable& table = blocks[group];
    if (region->rows != 0) {
        if (table.blocks.empty()) return refuse(rank, *region, "no slot for the state");
    } else {
        const Stripe stripe = stripe_of(rank);
        const uint64_t begin = stripe.position(range.first), end = stripe.position(range.end);
        if (begin == end) return {};
        if (table.first_token % region->block_tokens != 0) return refuse(rank, *region, "a block table that begins inside a block");
        const uint64_t covered_to = table.first_token + uint64_t{table.blocks.size()} * region->block_tokens;
        if (begin < table.first_token || end > covered_to) {
            return fail(Code::kInvalidArgument, "rank '{}' {}: local tokens {} to {} are asked for, its blocks hold {} to {}", rank.segment,
                        place_of(*region), begin, end - 1, table.first_token, covered_to);
        }
    }
    const std::vector<uint64_t> sorted = sorted_blocks(rank, blocks, group, range);
    if (const auto twice = std::adjacent_find(sorted.begin(), sorted.end()); twice != sorted.end()) {
        return fail(Code::kInvalidArgument, "rank '{}' {}: block {} is named twice", rank.segment, place_of(*region), *twice);
    }
    for (const Region& each : rank.regions) {
        if (each.group != group || sorted.empty() || sorted.back() < each.blocks) continue;
        return fail(Code::kInvalidArgument, "rank '{}' {}: block {} of {}", rank.segment, place_of(each), sorted.back(), each.blocks);
    }
    return {};
}

std::vector<uint64_t> sorted_blocks(const Rank& rank, const RankBlocks& blocks, uint32_t group, TokenRange range) {
    const Region* region = first_of_group(rank, group);
    if (region == nullptr) return {};
    const BlockTable& table = blocks[group];
    const Use use = use_of(rank, *region, table, range);
    std::vector<uint64_t> sorted(table.blocks.begin() + static_cast<std::ptrdiff_t>(use.first),
                                 table.blocks.begin() + static_cast<std::ptrdiff_t>(use.end));
    if (!std::is_sorted(sorted.begin(), sorted.end())) std::sort(sorted.begin(), sorted.end());
    return sorted;
}

}  // namespace mooncake::kvplan
