// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "kvplan/layout.h"

/// From layouts to bytes (docs/kvplan.md). Everything here is computation: no I/O, no threads.
namespace mooncake::kvplan {

/// An interval of heads of one part of one layer, from a region of the source to a region of the target.
struct Strip {
    uint32_t source_region = 0, target_region = 0;  // in their ranks
    uint32_t first_head = 0, heads = 0;
    uint32_t run_set = 0;  // of its pair
};

/// Tokens that go from one block to one block: `count` of them, `source_step` slots apart there and `target_step` slots apart here.
struct TokenRun {
    uint64_t source_block = 0, target_block = 0;
    uint32_t source_slot = 0, target_slot = 0;
    uint32_t source_step = 1, target_step = 1;
    uint32_t count = 0;
    bool operator==(const TokenRun&) const = default;
};

/// What the strips of a pair have in common: one set for each pair of groups. A state is one run: its rows.
using RunSet = std::vector<TokenRun>;

/// What one source sends to one target: every strip times the runs of its set.
struct PairPlan {
    uint32_t source = 0, target = 0;  // in the sides given to make_plan()
    std::vector<Strip> strips;        // in the order of the target's regions, so that layers follow each other
    std::vector<RunSet> run_sets;
    uint64_t bytes = 0;
};

struct Request {
    uint64_t seed = 0;  // spreads requests over replicas; the same on both sides
    uint64_t first_token = 0, tokens = 0;
    std::span<const RankBlocks> source_blocks, target_blocks;  // one for each rank of a side; what no pair of the plan needs may be empty
};

struct Plan {
    std::vector<PairPlan> pairs;                   // those with anything to move, by target, then source
    std::vector<uint32_t> sources_of, targets_of;  // in this plan: how many sources a target hears from, how many targets a source serves
};

/// Which bytes go where, for the given targets (all: empty). kInvalidArgument: a layout or a block table that contradicts itself; kNotSupported: no exact
/// cover, with the layer, head and token that has no source. Which replica serves a target depends on layouts, seed and tokens only, never on
/// blocks or on `only_targets`: both sides, and every rank of them, choose alike.
MC_EXPORT Result<Plan> make_plan(std::span<const Rank> sources, std::span<const Rank> targets, const Request& request,
                       std::span<const uint32_t> only_targets = {});

/// The same for a rank that must not compute what others do: pairs of this source alone, and no other source's blocks are needed.
/// The cover of every target is proved all the same.
MC_EXPORT Result<Plan> make_plan_of_source(std::span<const Rank> sources, std::span<const Rank> targets, const Request& request, uint32_t source);

/// One contiguous piece.
struct Piece {
    uint64_t source = 0, target = 0;  // addresses
    uint64_t bytes = 0;
};
/// Calls `emit` with everything the pair moves for one layer (empty: all), merged where it is contiguous on both sides, at most `pieces_max` at a time.
/// Returns the number of pieces. The ranks are those the plan was made of.
MC_EXPORT uint64_t expand(const PairPlan& pair, const Rank& source, const Rank& target, std::string_view layer, size_t pieces_max,
                const std::function<void(std::span<const Piece>)>& emit);

}  // namespace mooncake::kvplan
