// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kvplan/cells.h"
#include "kvplan/check.h"

namespace mooncake::kvplan {
namespace {

struct Placed {
    const Region* region = nullptr;
    Cells cells;
    uint64_t end = 0;
};

bool has_outermost_blocks(const Region& region) { return region.blocks == 1 || region.block_stride >= block_of(region).extent(); }

/// Two regions that share memory: do the blocks in use meet? Both lists ascend, and so do the addresses of their blocks.
bool used_blocks_meet(const Region& a, std::span<const uint64_t> a_blocks, const Region& b, std::span<const uint64_t> b_blocks) {
    const Cells a_block = block_of(a), b_block = block_of(b);
    size_t i = 0, j = 0;
    while (i < a_blocks.size() && j < b_blocks.size()) {
        const uint64_t a_at = a.base + a_blocks[i] * a.block_stride, b_at = b.base + b_blocks[j] * b.block_stride;
        if (!are_disjoint(a_block, b_block, static_cast<int64_t>(b_at - a_at))) return true;
        if (a_at + a_block.extent() <= b_at + b_block.extent()) {
            ++i;
        } else {
            ++j;
        }
    }
    return false;
}

bool share_bytes(const Placed& a, const Placed& b, std::span<const std::vector<uint64_t>> used) {
    if (are_disjoint(a.cells, b.cells, static_cast<int64_t>(b.region->base - a.region->base))) return false;
    if (!has_outermost_blocks(*a.region) || !has_outermost_blocks(*b.region)) return true;
    return used_blocks_meet(*a.region, used[a.region->group], *b.region, used[b.region->group]);
}

}  // namespace

Result<> check_disjoint(const Rank& rank, std::span<const std::vector<uint64_t>> used) {
    std::vector<Placed> placed;
    placed.reserve(rank.regions.size());
    for (const Region& region : rank.regions) {
        if (used[region.group].empty()) continue;
        placed.push_back({&region, cells_of(region), 0});
        placed.back().end = region.base + placed.back().cells.extent();
        // Offsets between regions are signed; no address space is larger.
        if (placed.back().end > INT64_MAX)
            return fail(Code::kInvalidArgument, "rank '{}' {}: addresses beyond 2^63", rank.segment, place_of(region));
    }
    std::sort(placed.begin(), placed.end(), [](const Placed& a, const Placed& b) { return a.region->base < b.region->base; });
    for (size_t i = 0; i < placed.size(); ++i) {
        for (size_t j = i + 1; j < placed.size() && placed[j].region->base < placed[i].end; ++j) {
            if (!share_bytes(placed[i], placed[j], used)) continue;
            return fail(Code::kInvalidArgument, "rank '{}': {} (heads from {}) and {} (heads from {}) share memory", rank.segment,
                        place_of(*placed[i].region), placed[i].region->first_head, place_of(*placed[j].region),
                        placed[j].region->first_head);
        }
    }
    return {};
}

}  // namespace mooncake::kvplan
