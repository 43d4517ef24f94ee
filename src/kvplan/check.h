// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "kvplan/layout.h"
#include "kvplan/token_runs.h"

/// What must hold of one rank before it takes part in a plan.
namespace mooncake::kvplan {

inline constexpr uint32_t kStripesMax = 4096;
inline constexpr uint32_t kGroupsMax = 256;
inline constexpr uint64_t kTokensMax = uint64_t{1} << 32;  // of a request: what it takes to walk them stays bounded
inline constexpr uint64_t kTokenMax = uint64_t{1} << 62;

/// "layer 'model.layers.3' part 'k'", for messages.
std::string place_of(const Region& region);

/// The layout contradicts nothing: cells lie inside their regions, no two of a region share a byte, no head is held twice, groups are uniform.
Result<> check_rank(const Rank& rank);

/// The group's blocks for the own tokens of the range (of a state: its slot) are there, inside the regions, and each named once.
Result<> check_blocks(const Rank& rank, const RankBlocks& blocks, uint32_t group, TokenRange range);
/// Those blocks, once they are checked: ascending.
std::vector<uint64_t> sorted_blocks(const Rank& rank, const RankBlocks& blocks, uint32_t group, TokenRange range);

/// No byte of the rank's memory belongs to two cells of the request: regions may lie within each other (K beside V in a block, layers inside
/// a block) and even share memory, as long as different blocks of it are in use. `used` are the sorted blocks of each group.
Result<> check_disjoint(const Rank& rank, std::span<const std::vector<uint64_t>> used);

}  // namespace mooncake::kvplan
