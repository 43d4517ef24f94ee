// SPDX-License-Identifier: Apache-2.0
// Random pairs of sides, carried out in memory and compared byte by byte with what every cell must be; and the same sides broken in one place.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "kvplan/testing/sides.h"

namespace mooncake::kvplan::testing {
namespace {

uint64_t pick(std::mt19937_64& random, uint64_t first, uint64_t last) { return first + random() % (last - first + 1); }

struct Sample {
    SideSpec source, target;
    Tokens tokens;
};

std::vector<PartSpec> random_parts(std::mt19937_64& random, bool windowed, bool states) {
    std::vector<PartSpec> parts;
    const uint64_t layers = pick(random, 1, 4);
    for (uint64_t i = 0; i < layers; ++i) {
        const std::string layer = "layer." + std::to_string(i);
        const uint32_t group = windowed && random() % 2 == 0 ? 1 : 0;
        const auto heads = static_cast<uint32_t>(pick(random, 1, 8));
        if (random() % 4 == 0) {
            parts.push_back({layer, "latent", 1, pick(random, 1, 6), 0, group});
        } else if (random() % 3 == 0) {
            parts.push_back({layer, "kv", heads, pick(random, 1, 6), 0, group});
        } else {
            const uint64_t bytes = pick(random, 1, 5);
            parts.push_back({layer, "k", heads, bytes, 0, group});
            parts.push_back({layer, "v", heads, random() % 4 == 0 ? bytes + 1 : bytes, 0, group});
        }
        if (!states || random() % 2 == 0) continue;
        const auto rows = static_cast<uint32_t>(pick(random, 1, 3));
        for (const char* part : {"conv.q", "conv.k", "conv.v"}) parts.push_back({layer, part, heads, pick(random, 1, 4), rows, 2});
        parts.push_back({layer, "temporal", heads, pick(random, 1, 9), 1, 2});
    }
    return parts;
}

SideSpec random_side(std::mt19937_64& random, const std::vector<PartSpec>& parts) {
    SideSpec spec;
    spec.tp = static_cast<uint32_t>(pick(random, 1, 8));
    if (random() % 3 == 0) {
        spec.stripes = static_cast<uint32_t>(pick(random, 2, 4));
        spec.stripe_tokens = random() % 2 == 0 ? 1 : static_cast<uint32_t>(pick(random, 1, 5));
        spec.tp = std::min<uint32_t>(spec.tp, 3);
    }
    const uint64_t stages = random() % 3 == 0 ? pick(random, 1, 3) : 1;
    spec.stages.resize(stages);
    for (const PartSpec& part : parts) spec.stages[std::hash<std::string>()(part.layer) * (stages + 1) / 7 % stages].push_back(part);
    for (auto& stage : spec.stages) std::shuffle(stage.begin(), stage.end(), random);
    spec.block_tokens = {static_cast<uint32_t>(pick(random, 1, 7)), static_cast<uint32_t>(pick(random, 1, 4)), 1};
    spec.order = static_cast<Order>(random() % 3);
    spec.padding = random() % 2 == 0 ? 0 : pick(random, 1, 3);
    spec.parts_inside_blocks = random() % 3 == 0;
    spec.region_per_head = random() % 5 == 0;
    return spec;
}

Sample random_sample(std::mt19937_64& random) {
    Sample sample;
    const bool windowed = random() % 4 == 0;
    const std::vector<PartSpec> parts = random_parts(random, windowed, random() % 4 == 0);
    sample.source = random_side(random, parts);
    sample.target = random_side(random, parts);
    sample.tokens = {random() % 2 == 0 ? 0 : pick(random, 0, 40), pick(random, random() % 10 == 0 ? 0 : 1, 60)};
    if (windowed) sample.target.kept_from = {0, pick(random, 0, sample.tokens.first + sample.tokens.count + 3)};
    return sample;
}

TEST(PlanProperty, RandomPairsMoveEveryByteExactlyOnce) {
    std::mt19937_64 random(20260101);
    for (uint64_t round = 0; round < 4000; ++round) {
        const Sample sample = random_sample(random);
        ASSERT_EQ(move_all(sample.source, sample.target, sample.tokens, round), "") << "round " << round;
    }
}

/// Pairs of plans that must be the same, whoever makes them.
void expect_same(const PairPlan& a, const PairPlan& b) {
    EXPECT_EQ(std::tie(a.source, a.target, a.bytes), std::tie(b.source, b.target, b.bytes));
    EXPECT_EQ(a.run_sets, b.run_sets);
    ASSERT_EQ(a.strips.size(), b.strips.size());
    for (size_t i = 0; i < a.strips.size(); ++i) {
        EXPECT_EQ(
            std::tie(a.strips[i].source_region, a.strips[i].target_region, a.strips[i].first_head, a.strips[i].heads, a.strips[i].run_set),
            std::tie(b.strips[i].source_region, b.strips[i].target_region, b.strips[i].first_head, b.strips[i].heads, b.strips[i].run_set));
    }
}

TEST(PlanProperty, EveryRankOfBothSidesMakesTheSamePairs) {
    std::mt19937_64 random(7);
    for (uint64_t round = 0; round < 300; ++round) {
        const Sample sample = random_sample(random);
        const Side source = make_side(sample.source, sample.tokens, random), target = make_side(sample.target, sample.tokens, random);
        const auto whole = make_plan(source.ranks, target.ranks, request_of(source, target, sample.tokens, round));
        ASSERT_TRUE(whole) << whole.error().to_string();
        std::vector<PairPlan> by_target, by_source;
        for (uint32_t i = 0; i < target.ranks.size(); ++i) {
            // A target needs no other target's blocks.
            std::vector<RankBlocks> known(target.ranks.size());
            known[i] = target.blocks[i];
            Request request = request_of(source, target, sample.tokens, round);
            request.target_blocks = known;
            const auto part = make_plan(source.ranks, target.ranks, request, std::span(&i, 1));
            ASSERT_TRUE(part) << part.error().to_string();
            EXPECT_EQ(part->sources_of[i], whole->sources_of[i]);
            by_target.insert(by_target.end(), part->pairs.begin(), part->pairs.end());
        }
        for (uint32_t i = 0; i < source.ranks.size(); ++i) {
            std::vector<RankBlocks> known(source.ranks.size());
            known[i] = source.blocks[i];
            Request request = request_of(source, target, sample.tokens, round);
            request.source_blocks = known;
            const auto part = make_plan_of_source(source.ranks, target.ranks, request, i);
            ASSERT_TRUE(part) << part.error().to_string();
            EXPECT_EQ(part->targets_of[i], whole->targets_of[i]);
            by_source.insert(by_source.end(), part->pairs.begin(), part->pairs.end());
        }
        std::sort(by_source.begin(), by_source.end(),
                  [](const PairPlan& a, const PairPlan& b) { return std::tie(a.target, a.source) < std::tie(b.target, b.source); });
        ASSERT_EQ(by_target.size(), whole->pairs.size());
        ASSERT_EQ(by_source.size(), whole->pairs.size());
        for (size_t i = 0; i < whole->pairs.size(); ++i) {
            expect_same(by_target[i], whole->pairs[i]);
            expect_same(by_source[i], whole->pairs[i]);
        }
    }
}

using Name = std::tuple<std::string, std::string, uint32_t, uint64_t>;
/// Whether some source has each cell that a target wants.
bool has_all(const Side& source, const Side& target, Tokens tokens) {
    std::set<Name> held;
    for (const Cell& cell : cells_of_tokens(source, tokens)) held.insert({cell.region->layer, cell.region->part, cell.head, cell.token});
    for (const Cell& cell : cells_of_tokens(target, tokens)) {
        if (!held.count({cell.region->layer, cell.region->part, cell.head, cell.token})) return false;
    }
    return true;
}

TEST(PlanProperty, AMissingRegionIsRefusedExactlyIfItLeavesAHole) {
    std::mt19937_64 random(11);
    int refused = 0;
    for (uint64_t round = 0; round < 1500; ++round) {
        const Sample sample = random_sample(random);
        Side source = make_side(sample.source, sample.tokens, random), target = make_side(sample.target, sample.tokens, random);
        const size_t holes = pick(random, 1, 3);
        for (size_t i = 0; i < holes; ++i) {
            Rank& rank = source.ranks[random() % source.ranks.size()];
            if (!rank.regions.empty())
                rank.regions.erase(rank.regions.begin() + static_cast<std::ptrdiff_t>(random() % rank.regions.size()));
        }
        fill(source, sample.tokens);
        const auto plan = make_plan(source.ranks, target.ranks, request_of(source, target, sample.tokens, round));
        ASSERT_EQ(plan.has_value(), has_all(source, target, sample.tokens)) << "round " << round << (plan ? "" : plan.error().to_string());
        if (plan) {
            ASSERT_EQ(carry_out(*plan, source, target, sample.tokens, 7), "") << "round " << round;
            continue;
        }
        ++refused;
        EXPECT_EQ(plan.error().code(), Code::kNotSupported);
        EXPECT_NE(plan.error().message().find("has no source"), std::string::npos) << plan.error().message();
    }
    EXPECT_GT(refused, 300);
}

/// What can be wrong with a side that was right.
struct Fault {
    const char* words;  // that the refusal must have
    Code code;
    bool (*spoil)(Side& side, Side& other, Tokens tokens, std::mt19937_64& random);  // false: this side cannot be spoilt so
};

Region* any_region(Side& side, std::mt19937_64& random) {
    Rank& rank = side.ranks[random() % side.ranks.size()];
    return rank.regions.empty() ? nullptr : &rank.regions[random() % rank.regions.size()];
}
template <typename Change>
bool change_region(Side& side, std::mt19937_64& random, Change change) {
    Region* region = any_region(side, random);
    return region != nullptr && change(*region);
}
/// Changes the table of a group whose blocks are all in use but maybe the first.
template <typename Change>
bool change_table(Side& side, Tokens tokens, std::mt19937_64& random, Change change) {
    const size_t number = random() % side.ranks.size();
    const Rank& rank = side.ranks[number];
    const bool has_tokens = std::any_of(rank.regions.begin(), rank.regions.end(), [](const Region& region) { return region.group == 0; });
    return has_tokens && rank.stripes == 1 && tokens.count != 0 && change(side.blocks[number][0], rank);
}
uint32_t block_tokens_of(const Rank& rank) {
    return std::find_if(rank.regions.begin(), rank.regions.end(), [](const Region& region) { return region.group == 0; })->block_tokens;
}

const Fault kFaults[] = {
    {"outside the region", Code::kInvalidArgument,
     [](Side& side, Side&, Tokens, std::mt19937_64& random) {
         return change_region(side, random, [](Region& region) { return region.length--, true; });
     }},
    {"end of all addresses", Code::kInvalidArgument,
     [](Side& side, Side&, Tokens, std::mt19937_64& random) {
         return change_region(side, random, [](Region& region) { return region.base = UINT64_MAX - region.length + 2, true; });
     }},
    {"beyond those of the model", Code::kInvalidArgument,
     [](Side& side, Side&, Tokens, std::mt19937_64& random) {
         return change_region(side, random, [](Region& region) { return region.heads = UINT32_MAX, true; });
     }},
    {"overlap", Code::kInvalidArgument,
     [](Side& side, Side&, Tokens, std::mt19937_64& random) {
         return change_region(side, random, [](Region& region) {
             if (region.blocks < 2) return false;
             region.block_stride = region.cell_bytes - 1;
             return true;
         });
     }},
    {"outside the region", Code::kInvalidArgument,
     [](Side& side, Side&, Tokens, std::mt19937_64& random) {
         return change_region(side, random, [](Region& region) { return region.blocks = UINT64_MAX, region.block_stride += 1, true; });
     }},
    {"stripe", Code::kInvalidArgument,
     [](Side& side, Side&, Tokens, std::mt19937_64& random) {
         Rank& rank = side.ranks[random() % side.ranks.size()];
         return rank.stripe = rank.stripes, true;
     }},
    {"lies in two regions", Code::kInvalidArgument,
     [](Side& side, Side&, Tokens, std::mt19937_64& random) {
         Rank& rank = side.ranks[random() % side.ranks.size()];
         if (rank.regions.empty()) return false;
         const Region copy = rank.regions[random() % rank.regions.size()];
         return rank.regions.push_back(copy), true;
     }},
    {"beyond the largest", Code::kInvalidArgument,
     [](Side& side, Side&, Tokens, std::mt19937_64& random) {
         return change_region(side, random, [](Region& region) { return region.group = 1u << 31, true; });
     }},
};

/// Of targets alone: sources of which nothing is needed are not looked at so closely.
const Fault kTargetFaults[] = {
    {"bytes", Code::kNotSupported,
     [](Side& side, Side&, Tokens tokens, std::mt19937_64& random) {
         return change_region(side, random, [&](Region& region) {
             if (region.cell_bytes < 2 || tokens.count == 0 || side.ranks[0].stripes != 1 || region.group == 1) return false;
             --region.cell_bytes;
             return true;
         });
     }},
    {"heads", Code::kNotSupported,
     [](Side& side, Side&, Tokens tokens, std::mt19937_64& random) {
         return change_region(side, random, [&](Region& region) {
             if (tokens.count == 0 || side.ranks[0].stripes != 1 || region.group == 1) return false;
             ++region.total_heads;
             return true;
         });
     }},
    {"named twice", Code::kInvalidArgument,
     [](Side& side, Side&, Tokens tokens, std::mt19937_64& random) {
         return change_table(side, tokens, random, [&](BlockTable& table, const Rank& rank) {
             if (tokens.count <= block_tokens_of(rank)) return false;
             std::fill(table.blocks.begin(), table.blocks.end(), table.blocks.back());
             return true;
         });
     }},
    {"block", Code::kInvalidArgument,
     [](Side& side, Side&, Tokens tokens, std::mt19937_64& random) {
         return change_table(side, tokens, random, [](BlockTable& table, const Rank&) { return table.blocks.back() = 1000, true; });
     }},
    {"are asked for", Code::kInvalidArgument,
     [](Side& side, Side&, Tokens tokens, std::mt19937_64& random) {
         return change_table(side, tokens, random, [](BlockTable& table, const Rank&) { return table.blocks.pop_back(), true; });
     }},
    {"are asked for", Code::kInvalidArgument,
     [](Side& side, Side&, Tokens tokens, std::mt19937_64& random) {
         return change_table(side, tokens, random,
                             [](BlockTable& table, const Rank& rank) { return table.first_token += 100 * block_tokens_of(rank), true; });
     }},
    {"no block table", Code::kInvalidArgument,
     [](Side& side, Side&, Tokens tokens, std::mt19937_64& random) {
         return change_table(side, tokens, random, [&](BlockTable& table, const Rank&) {
             for (RankBlocks& tables : side.blocks) {
                 if (&tables[0] == &table) return tables.clear(), true;
             }
             return false;
         });
     }},
    {"share memory", Code::kInvalidArgument,
     [](Side& side, Side& other, Tokens tokens, std::mt19937_64& random) {
         Region* region = any_region(side, random);
         if (region == nullptr || region->group != 0 || side.ranks[0].stripes != 1 || tokens.count == 0) return false;
         const std::string layer = region->layer, part = region->part;
         for (Side* each : {&side, &other}) {
             for (Rank& rank : each->ranks) {
                 const size_t count = rank.regions.size();
                 for (size_t i = 0; i < count; ++i) {
                     if (rank.regions[i].layer != layer || rank.regions[i].part != part) continue;
                     Region twin = rank.regions[i];
                     twin.part = "twin";
                     rank.regions.push_back(twin);
                 }
             }
         }
         return true;
     }},
};

void expect_refused(const Fault& fault, const Sample& sample, bool at_target, uint64_t round, std::mt19937_64& random, int& spoilt) {
    Side source = make_side(sample.source, sample.tokens, random), target = make_side(sample.target, sample.tokens, random);
    if (!fault.spoil(at_target ? target : source, at_target ? source : target, sample.tokens, random)) return;
    ++spoilt;
    const auto plan = make_plan(source.ranks, target.ranks, request_of(source, target, sample.tokens, round));
    ASSERT_FALSE(plan) << fault.words << " round " << round;
    EXPECT_EQ(plan.error().code(), fault.code) << plan.error().to_string() << " instead of " << fault.words;
    EXPECT_NE(plan.error().message().find(fault.words), std::string::npos) << plan.error().to_string() << " instead of " << fault.words;
}

TEST(PlanProperty, WhatContradictsItselfIsRefused) {
    std::mt19937_64 random(13);
    int spoilt = 0;
    for (uint64_t round = 0; round < 200; ++round) {
        const Sample sample = random_sample(random);
        for (const Fault& fault : kFaults) {
            for (const bool at_target : {false, true})
                ASSERT_NO_FATAL_FAILURE(expect_refused(fault, sample, at_target, round, random, spoilt));
        }
        for (const Fault& fault : kTargetFaults) ASSERT_NO_FATAL_FAILURE(expect_refused(fault, sample, true, round, random, spoilt));
    }
    EXPECT_GT(spoilt, 3000);
}

}  // namespace
}  // namespace mooncake::kvplan::testing
