// SPDX-License-Identifier: Apache-2.0
#include "kvplan/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "kvplan/testing/sides.h"

namespace mooncake::kvplan::testing {
namespace {

SideSpec side_of(uint32_t tp, std::vector<PartSpec> parts, uint32_t block_tokens = 4, Order order = Order::kTokenMajor) {
    return {.tp = tp, .stages = {std::move(parts)}, .block_tokens = {block_tokens}, .order = order};
}

struct Pair {
    Pair(const SideSpec& from, const SideSpec& to, Tokens which)
        : tokens(which), random(3), source(make_side(from, which, random)), target(make_side(to, which, random)) {}
    Result<Plan> plan(uint64_t seed = 1) const { return make_plan(source.ranks, target.ranks, request_of(source, target, tokens, seed)); }

    Tokens tokens;
    std::mt19937_64 random;
    Side source, target;
};

std::vector<Piece> pieces_of(const PairPlan& pair, const Pair& sides, std::string_view layer = "", size_t pieces_max = 100) {
    std::vector<Piece> all;
    const uint64_t count = expand(pair, sides.source.ranks[pair.source], sides.target.ranks[pair.target], layer, pieces_max,
                                  [&](std::span<const Piece> some) { all.insert(all.end(), some.begin(), some.end()); });
    EXPECT_EQ(count, all.size());
    return all;
}

TEST(Plan, EveryTripleOfParallelismsAndHeads) {
    const uint32_t sizes[] = {1, 2, 4, 8, 16, 32};
    for (const uint32_t prefill : sizes) {
        for (const uint32_t decode : sizes) {
            for (const uint32_t heads : sizes) {
                const std::vector<PartSpec> parts = attention(1, heads, 2);
                EXPECT_EQ(move_all(side_of(prefill, parts), side_of(decode, parts), {0, 5}), "")
                    << prefill << " " << decode << " " << heads;
            }
        }
    }
}

TEST(Plan, WhoHearsFromHowMany) {
    for (const uint32_t prefill : {1u, 2u, 4u, 8u}) {
        for (const uint32_t decode : {1u, 2u, 4u, 8u}) {
            const std::vector<PartSpec> parts = attention(2, 8, 2);
            const Pair sides(side_of(prefill, parts), side_of(decode, parts), {0, 9});
            const Plan plan = sides.plan().value();
            for (uint32_t target = 0; target < decode; ++target) EXPECT_EQ(plan.sources_of[target], std::max(1u, prefill / decode));
            for (uint32_t source = 0; source < prefill; ++source) EXPECT_EQ(plan.targets_of[source], std::max(1u, decode / prefill));
            for (const PairPlan& pair : plan.pairs) {
                EXPECT_EQ(pair.target * prefill / decode,
                          prefill < decode ? pair.source : pair.source / (prefill / decode) * (prefill / decode));
            }
        }
    }
}

TEST(Plan, OfReplicatedHeadsOneIsEnough) {
    const std::vector<PartSpec> parts = attention(2, 4, 2);
    for (const uint32_t decode : {1u, 2u}) {
        const Pair sides(side_of(8, parts), side_of(decode, parts), {0, 9});
        const Plan plan = sides.plan().value();
        for (uint32_t target = 0; target < decode; ++target) EXPECT_EQ(plan.sources_of[target], 4 / decode);
        std::set<uint32_t> heads;
        for (const PairPlan& pair : plan.pairs) {
            EXPECT_EQ(pair.strips.size(), 4u);  // two layers, K and V
            heads.insert(pair.strips[0].first_head);
            EXPECT_EQ(pair.strips[0].first_head, pair.source / 2);
        }
        EXPECT_EQ(heads.size(), 4u);
    }
}

TEST(Plan, ReplicasShareTheLoadOfRequestsAndOfTargets) {
    const std::vector<PartSpec> latent = {{.layer = "l", .part = "latent", .total_heads = 1, .cell_bytes = 8}};
    const Pair sides(side_of(8, latent), side_of(4, latent), {0, 3});
    std::vector<int> requests_of(8);
    for (uint64_t seed = 0; seed < 800; ++seed) {
        const Plan plan = sides.plan(seed).value();
        ASSERT_EQ(plan.pairs.size(), 4u);
        for (const uint32_t targets : plan.targets_of) EXPECT_LE(targets, 1u);  // four different ones
        for (const PairPlan& pair : plan.pairs) ++requests_of[pair.source];
    }
    for (const int requests : requests_of) EXPECT_NEAR(requests, 400, 100);
}

TEST(Plan, RanksThatDoNotDivideEachOther) {
    const std::vector<PartSpec> parts = attention(2, 12, 3);
    for (const Order order : {Order::kTokenMajor, Order::kHeadMajor, Order::kHeadsOutside}) {
        EXPECT_EQ(move_all(side_of(6, parts, 4, order), side_of(4, parts), {0, 21}), "");
        EXPECT_EQ(move_all(side_of(4, parts), side_of(6, parts, 4, order), {0, 21}), "");
        EXPECT_EQ(move_all(side_of(5, parts), side_of(7, parts, 4, order), {0, 21}), "");
    }
    const Pair sides(side_of(6, parts), side_of(4, parts), {0, 21});
    EXPECT_EQ(sides.plan()->sources_of, (std::vector<uint32_t>{2, 2, 2, 2}));
    EXPECT_EQ(sides.plan()->targets_of, (std::vector<uint32_t>{1, 2, 1, 1, 2, 1}));
}

TEST(Plan, StagesMeetByTheNamesOfLayers) {
    std::vector<PartSpec> first = attention(3, 4, 2), second = attention(2, 4, 2, 3), all;
    second.push_back({.layer = "model.mtp.0", .part = "kv", .total_heads = 4, .cell_bytes = 5});
    all = second;  // another order than the stages have
    all.insert(all.end(), first.begin(), first.end());
    SideSpec two = side_of(2, {}), one = side_of(2, all);
    two.stages = {first, second};
    EXPECT_EQ(move_all(two, one, {0, 10}), "");
    EXPECT_EQ(move_all(one, two, {0, 10}), "");
    const Pair sides(two, one, {0, 10});
    EXPECT_EQ(sides.plan()->sources_of, (std::vector<uint32_t>{2, 2}));
    SideSpec shifted = two;
    shifted.stages = {attention(1, 4, 2), attention(4, 4, 2, 1)};
    shifted.stages[1].push_back(second.back());
    EXPECT_EQ(move_all(two, shifted, {0, 10}), "");
}

TEST(Plan, PagesOfDifferentSizes) {
    const std::vector<PartSpec> parts = attention(1, 2, 2);
    for (const auto& [from, to] : {std::pair(16u, 4u), std::pair(4u, 16u), std::pair(6u, 4u), std::pair(1u, 7u)}) {
        EXPECT_EQ(move_all(side_of(1, parts, from), side_of(2, parts, to), {0, 50}), "");
        EXPECT_EQ(move_all(side_of(1, parts, from), side_of(2, parts, to), {13, 50}), "");
    }
    Pair sides(side_of(1, parts, 8), side_of(1, parts, 4), {0, 14});
    sides.source.blocks[0][0].blocks = {3, 1};
    sides.target.blocks[0][0].blocks = {0, 5, 2, 4};
    const Plan plan = sides.plan().value();
    const RunSet expected = {{3, 0, 0, 0, 1, 1, 4}, {3, 5, 4, 0, 1, 1, 4}, {1, 2, 0, 0, 1, 1, 4}, {1, 4, 4, 0, 1, 1, 2}};
    EXPECT_EQ(plan.pairs[0].run_sets[0], expected);
}

TEST(Plan, StripesOfTokens) {
    const std::vector<PartSpec> latent = {{.layer = "l", .part = "latent", .total_heads = 1, .cell_bytes = 8}};
    SideSpec whole = side_of(1, latent, 4), striped = side_of(1, latent, 4);
    striped.stripes = 2;
    Pair sides(whole, striped, {0, 16});
    sides.source.blocks[0][0].blocks = {0, 1, 2, 3};
    sides.target.blocks[1][0].blocks = {1, 0};
    const Plan plan = sides.plan().value();
    ASSERT_EQ(plan.pairs.size(), 2u);
    // Odd tokens: every other slot of two source blocks fills one block.
    const RunSet expected = {{0, 1, 1, 0, 2, 1, 2}, {1, 1, 1, 2, 2, 1, 2}, {2, 0, 1, 0, 2, 1, 2}, {3, 0, 1, 2, 2, 1, 2}};
    EXPECT_EQ(plan.pairs[1].run_sets[0], expected);
    for (const uint32_t from : {1u, 2u, 3u, 4u, 6u}) {
        for (const uint32_t to : {1u, 2u, 3u, 4u, 6u}) {
            for (const uint32_t tokens : {1u, 2u, 4u}) {
                SideSpec a = whole, b = striped;
                a.stripes = from;
                b.stripes = to;
                b.stripe_tokens = tokens;
                EXPECT_EQ(move_all(a, b, {5, 70}), "") << from << " " << to << " " << tokens;
                EXPECT_EQ(move_all(b, a, {5, 70}), "") << from << " " << to << " " << tokens;
            }
        }
    }
}

TEST(Plan, AStateIsCutPartByPart) {
    std::vector<PartSpec> conv;
    for (const char* part : {"conv.q", "conv.k", "conv.v"})
        conv.push_back({.layer = "l", .part = part, .total_heads = 8, .cell_bytes = 6, .rows = 3});
    conv.push_back({.layer = "l", .part = "temporal", .total_heads = 8, .cell_bytes = 40, .rows = 1});
    for (const auto& [from, to] : {std::pair(8u, 2u), std::pair(2u, 8u), std::pair(4u, 4u), std::pair(3u, 5u)}) {
        EXPECT_EQ(move_all(side_of(from, conv), side_of(to, conv), {0, 0}), "");
        SideSpec inside = side_of(to, conv);
        inside.parts_inside_blocks = true;
        EXPECT_EQ(move_all(side_of(from, conv), inside, {7, 100}), "");
    }
    // One row [q | k | v] of the state: part g of writer u goes to the target's offset of g and u source parts.
    const auto row_of = [&](uint32_t tp, uint32_t rank, uint64_t base) {
        Rank made{.segment = "r", .regions = {}};
        const uint32_t heads = 8 / tp;
        for (size_t part = 0; part < 3; ++part) {
            made.regions.push_back({.layer = "l",
                                    .part = conv[part].part,
                                    .base = base + part * heads * 6,
                                    .length = 6 * heads,
                                    .blocks = 1,
                                    .block_stride = 0,
                                    .token_stride = 6 * heads * 3,
                                    .head_stride = 6,
                                    .cell_bytes = 6,
                                    .first_head = rank * heads,
                                    .heads = heads,
                                    .total_heads = 8,
                                    .rows = 1});
        }
        return made;
    };
    const std::vector<Rank> four = {row_of(4, 0, 0), row_of(4, 1, 0), row_of(4, 2, 0), row_of(4, 3, 0)},
                            two = {row_of(2, 0, 0), row_of(2, 1, 0)};
    const RankBlocks slot = {{.first_token = 0, .blocks = {0}, .kept_from = 0}};
    const std::vector<RankBlocks> slots(4, slot);
    const Plan gather = make_plan(four, two, {.source_blocks = slots, .target_blocks = std::span(slots).first(2)}).value();
    ASSERT_EQ(gather.pairs.size(), 4u);
    std::vector<Piece> pieces;
    const auto keep = [&](std::span<const Piece> some) { pieces.insert(pieces.end(), some.begin(), some.end()); };
    expand(gather.pairs[3], four[3], two[1], "", 10, keep);  // writer 1 of the second target
    ASSERT_EQ(pieces.size(), 3u);
    for (uint64_t g = 0; g < 3; ++g) EXPECT_EQ(pieces[g].target, g * 24 + 1 * 12);
    pieces.clear();
    const Plan scatter = make_plan(two, four, {.source_blocks = std::span(slots).first(2), .target_blocks = slots}).value();
    expand(scatter.pairs[3], two[1], four[3], "", 10, keep);
    ASSERT_EQ(pieces.size(), 3u);
    for (uint64_t g = 0; g < 3; ++g) EXPECT_EQ(pieces[g].source, g * 24 + (3 * 12) % 24);
}

TEST(Plan, AWindowWantsTheLastTokensOnly) {
    std::vector<PartSpec> parts = attention(1, 4, 2);
    parts.push_back({.layer = "sliding", .part = "kv", .total_heads = 4, .cell_bytes = 3, .rows = 0, .group = 1});
    SideSpec from = side_of(4, parts), to = side_of(2, parts);
    from.block_tokens = {4, 8};
    to.block_tokens = {8, 2};
    to.kept_from = {0, 30};
    EXPECT_EQ(move_all(from, to, {0, 40}), "");
    to.kept_from = {0, 1000};  // nothing of it
    EXPECT_EQ(move_all(from, to, {0, 40}), "");
}

TEST(Plan, WhatIsContiguousOnBothSidesIsOnePiece) {
    const std::vector<PartSpec> parts = attention(2, 8, 16);
    const auto pieces_with = [&](uint32_t from, uint32_t to, Order order, bool in_order) {
        Pair sides(side_of(from, parts, 4, order), side_of(to, parts, 4, order), {0, 40});
        for (Side* side : {&sides.source, &sides.target}) {
            for (RankBlocks& tables : side->blocks) {
                for (size_t i = 0; i < 10; ++i) tables[0].blocks[i] = in_order ? i : (i * 7) % 10;
            }
        }
        if (!in_order) sides.target.blocks[0][0].blocks = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
        return pieces_of(sides.plan().value().pairs[0], sides).size();
    };
    EXPECT_EQ(pieces_with(4, 4, Order::kTokenMajor, true), 4u);  // layers times parts: whole pools
    EXPECT_EQ(pieces_with(4, 4, Order::kTokenMajor, false), 40u);
    EXPECT_EQ(pieces_with(8, 4, Order::kTokenMajor, true), 160u);  // every token
    EXPECT_EQ(pieces_with(8, 4, Order::kHeadMajor, true), 40u);    // every block
    EXPECT_EQ(pieces_with(2, 4, Order::kHeadMajor, true), 40u);
    EXPECT_EQ(pieces_with(2, 4, Order::kHeadsOutside, true), 8u);  // whole heads
}

TEST(Plan, TheBytesOfHeadMajorAndTokenMajorBlocks) {
    const std::vector<PartSpec> parts = {{.layer = "l", .part = "kv", .total_heads = 8, .cell_bytes = 10}};
    for (const Order order : {Order::kHeadMajor, Order::kTokenMajor}) {
        Pair sides(side_of(2, parts, 4, order), side_of(4, parts, 4, order), {0, 4});
        sides.source.blocks[1][0].blocks = {2};
        sides.target.blocks[3][0].blocks = {1};
        const Plan plan = sides.plan().value();
        const PairPlan& pair = plan.pairs[3];
        ASSERT_EQ(pair.source, 1u);
        const std::vector<Piece> pieces = pieces_of(pair, sides);
        const uint64_t from = sides.source.ranks[1].regions[0].base, to = sides.target.ranks[3].regions[0].base;
        if (order == Order::kHeadMajor) {
            ASSERT_EQ(pieces.size(), 1u);
            EXPECT_EQ(pieces[0].source, from + 2 * (4 * 4 * 10) + (6 - 4) * 40);
            EXPECT_EQ(pieces[0].target, to + 1 * (2 * 4 * 10));
            EXPECT_EQ(pieces[0].bytes, 80u);
            continue;
        }
        ASSERT_EQ(pieces.size(), 4u);
        for (uint64_t t = 0; t < 4; ++t) {
            EXPECT_EQ(pieces[t].source, from + (2 * 4 + t) * 40 + (6 - 4) * 10);
            EXPECT_EQ(pieces[t].target, to + (1 * 4 + t) * 20);
            EXPECT_EQ(pieces[t].bytes, 20u);
        }
    }
}

TEST(Plan, LayerByLayerIsTheSameAsAllAtOnce) {
    const std::vector<PartSpec> parts = attention(3, 4, 3);
    const Pair sides(side_of(4, parts), side_of(2, parts), {0, 17});
    const Plan plan = sides.plan().value();
    for (const PairPlan& pair : plan.pairs) {
        std::vector<Piece> by_layer;
        for (const char* layer : {"model.layers.0", "model.layers.1", "model.layers.2"}) {
            for (const Piece& piece : pieces_of(pair, sides, layer, 1)) by_layer.push_back(piece);
        }
        const std::vector<Piece> all = pieces_of(pair, sides);
        ASSERT_EQ(by_layer.size(), all.size());
        for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(by_layer[i].target, all[i].target);
        EXPECT_TRUE(pieces_of(pair, sides, "no such layer").empty());
    }
}

TEST(Plan, GroupsMayShareMemoryIfTheirBlocksDiffer) {
    std::vector<PartSpec> parts = {{.layer = "full", .part = "kv", .total_heads = 1, .cell_bytes = 4},
                                   {.layer = "state", .part = "s", .total_heads = 1, .cell_bytes = 16, .rows = 1, .group = 1}};
    SideSpec spec = side_of(1, parts);
    spec.block_tokens = {4, 1};
    Pair sides(spec, spec, {0, 4});
    std::vector<Region>& regions = sides.target.ranks[0].regions;
    regions[1].base = regions[0].base;
    regions[1].blocks = regions[0].blocks;
    regions[1].block_stride = regions[0].block_stride;
    regions[1].length = regions[0].length;
    sides.target.blocks[0][0].blocks = {2};
    sides.target.blocks[0][1].blocks = {1};
    EXPECT_TRUE(sides.plan());
    sides.target.blocks[0][1].blocks = {2};
    ASSERT_FALSE(sides.plan());
    EXPECT_NE(sides.plan().error().message().find("share memory"), std::string::npos);
}

TEST(Plan, AReasonNamesLayerHeadAndToken) {
    const std::vector<PartSpec> parts = attention(2, 4, 2);
    SideSpec striped = side_of(4, parts);
    striped.stripes = 3;
    Pair sides(striped, side_of(2, parts), {6, 9});
    const auto reason = [&] {
        const auto plan = sides.plan();
        return plan ? "" : plan.error().to_string();
    };
    EXPECT_EQ(reason(), "");
    // Head 2 of the tokens that are 1 modulo 3.
    std::vector<Region>& regions = sides.source.ranks[2 * 3 + 1].regions;
    const std::vector<Region> whole = regions;
    regions.erase(regions.begin() + 3);
    EXPECT_EQ(reason(), "not supported: layer 'model.layers.1' part 'v': head 2 of token 7 has no source for rank 'rank1'");
    regions = whole;
    for (size_t i = 0; i < 4; ++i) sides.source.ranks[i * 3 + 2].regions.clear();
    EXPECT_EQ(reason(), "not supported: layer 'model.layers.0' part 'k': head 0 of token 8 has no source for rank 'rank0'");
    sides.source.ranks.clear();
    sides.source.blocks.clear();
    EXPECT_EQ(reason(), "not supported: layer 'model.layers.0' part 'k': head 0 of token 6 has no source for rank 'rank0'");
}

TEST(Plan, RequestsThatMakeNoSenseAreRefused) {
    const std::vector<PartSpec> parts = attention(1, 4, 2);
    const Pair sides(side_of(2, parts), side_of(2, parts), {0, 8});
    const Request good = request_of(sides.source, sides.target, sides.tokens, 0);
    const auto refused = [&](auto change) {
        Request request = good;
        change(request);
        const auto plan = make_plan(sides.source.ranks, sides.target.ranks, request);
        return !plan && plan.error().code() == Code::kInvalidArgument;
    };
    EXPECT_TRUE(refused([](Request& request) { request.tokens = UINT64_MAX; }));
    EXPECT_TRUE(refused([](Request& request) { request.first_token = UINT64_MAX; }));
    EXPECT_TRUE(refused([](Request& request) { request.tokens = uint64_t{1} << 31; }));
    EXPECT_TRUE(refused([](Request& request) { request.source_blocks = {}; }));
    EXPECT_TRUE(refused([](Request& request) { request.target_blocks = request.target_blocks.first(1); }));
    const uint32_t none = 2;
    EXPECT_FALSE(make_plan(sides.source.ranks, sides.target.ranks, good, std::span(&none, 1)));
    EXPECT_FALSE(make_plan_of_source(sides.source.ranks, sides.target.ranks, good, 2));
}

}  // namespace
}  // namespace mooncake::kvplan::testing
