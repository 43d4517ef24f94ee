// SPDX-License-Identifier: Apache-2.0
// Two sides made of any bytes: planned or refused, never a crash; and what is planned writes only cells of the target, each byte once, from inside the source.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/error.h"
#include "kvplan/plan.h"

namespace {

using namespace mooncake;
using namespace mooncake::kvplan;

constexpr uint64_t kWorkMax = 1 << 16;  // pieces that are looked at

class Bytes {
public:
    Bytes(const uint8_t* data, size_t size) : at_(data), end_(data + size) {}
    uint64_t next() { return at_ == end_ ? 0 : *at_++; }
    /// Mostly small, now and then as large as numbers get.
    uint64_t number() {
        const uint64_t small = next();
        return small < 250 ? small : UINT64_MAX >> (next() % 64);
    }

private:
    const uint8_t* at_;
    const uint8_t* end_;
};

Region make_region(Bytes& bytes) {
    Region region;
    region.layer = std::string(1, static_cast<char>('a' + bytes.next() % 3));
    region.part = bytes.next() % 2 == 0 ? "k" : "v";
    region.base = bytes.number() * 64;
    region.length = bytes.number() * 16;
    region.blocks = bytes.number();
    region.block_tokens = static_cast<uint32_t>(bytes.next() % 9);
    region.block_stride = bytes.number();
    region.token_stride = bytes.number();
    region.head_stride = bytes.number();
    region.cell_bytes = 1 + bytes.next() % 4;
    region.first_head = static_cast<uint32_t>(bytes.next() % 4);
    region.heads = static_cast<uint32_t>(bytes.next() % 4);
    region.total_heads = 4;
    region.rows = bytes.next() % 8 == 7 ? static_cast<uint32_t>(bytes.next() % 4) : 0;
    region.group = bytes.next() % 8 == 7 ? static_cast<uint32_t>(bytes.number()) : 0;
    return region;
}

void make_side(Bytes& bytes, std::vector<Rank>& ranks, std::vector<RankBlocks>& blocks) {
    for (uint64_t left = bytes.next() % 4; left != 0; --left) {
        Rank rank;
        if (bytes.next() % 4 == 3) {
            rank.stripes = static_cast<uint32_t>(bytes.next());
            rank.stripe = static_cast<uint32_t>(bytes.next());
            rank.stripe_tokens = static_cast<uint32_t>(bytes.number());
        }
        for (uint64_t regions = bytes.next() % 4; regions != 0; --regions) rank.regions.push_back(make_region(bytes));
        RankBlocks tables(1 + bytes.next() % 2);
        for (BlockTable& table : tables) {
            table.first_token = bytes.next() % 4 == 3 ? bytes.number() : 0;
            table.kept_from = bytes.next() % 4 == 3 ? bytes.number() : 0;
            for (uint64_t count = bytes.next() % 16; count != 0; --count) table.blocks.push_back(bytes.number());
        }
        ranks.push_back(std::move(rank));
        blocks.push_back(std::move(tables));
    }
}

bool inside(const Rank& rank, uint64_t address, uint64_t bytes) {
    return std::any_of(rank.regions.begin(), rank.regions.end(), [&](const Region& region) {
        return address >= region.base && address - region.base <= region.length && bytes <= region.length - (address - region.base);
    });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    Bytes bytes(data, size);
    std::vector<Rank> sources, targets;
    std::vector<RankBlocks> source_blocks, target_blocks;
    const uint64_t seed = bytes.next(), first = bytes.next() % 8 == 7 ? bytes.number() : 0, tokens = bytes.number();
    make_side(bytes, sources, source_blocks);
    make_side(bytes, targets, target_blocks);
    const auto plan = make_plan(
        sources, targets,
        {.seed = seed, .first_token = first, .tokens = tokens, .source_blocks = source_blocks, .target_blocks = target_blocks});
    if (!plan) {
        MC_CHECK(plan.error().code() == Code::kInvalidArgument || plan.error().code() == Code::kNotSupported);
        return 0;
    }
    std::vector<std::vector<Piece>> written(targets.size());
    uint64_t work = 0;
    for (const PairPlan& pair : plan->pairs) {
        uint64_t moved = 0;
        expand(pair, sources[pair.source], targets[pair.target], "", 64, [&](std::span<const Piece> pieces) {
            for (const Piece& piece : pieces) {
                moved += piece.bytes;
                MC_CHECK(inside(sources[pair.source], piece.source, piece.bytes) &&
                         inside(targets[pair.target], piece.target, piece.bytes));
                if (++work <= kWorkMax) written[pair.target].push_back(piece);
            }
        });
        MC_CHECK(moved == pair.bytes);
    }
    for (std::vector<Piece>& pieces : written) {
        std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.target < b.target; });
        for (size_t i = 1; i < pieces.size(); ++i) MC_CHECK(pieces[i - 1].target + pieces[i - 1].bytes <= pieces[i].target);
    }
    return 0;
}
