// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "kvplan/plan.h"

/// Sides with memory of their own, so that a plan can be carried out and every byte of it be looked at. What is expected is computed the long
/// way round, cell by cell: nothing of the planner is used for it.
namespace mooncake::kvplan::testing {

struct PartSpec {
    std::string layer, part;
    uint32_t total_heads = 1;
    uint64_t cell_bytes = 1;
    uint32_t rows = 0;
    uint32_t group = 0;
};

enum class Order : uint8_t { kTokenMajor, kHeadMajor, kHeadsOutside };  // block, token, head; block, head, token; head, block, token

struct SideSpec {
    uint32_t tp = 1;
    uint32_t stripes = 1, stripe_tokens = 1;
    std::vector<std::vector<PartSpec>> stages;
    std::vector<uint32_t> block_tokens = {4};  // by group
    Order order = Order::kTokenMajor;
    uint64_t padding = 0;              // bytes behind each step of each dimension
    bool parts_inside_blocks = false;  // the regions of a group lie within each other's blocks
    bool region_per_head = false;
    std::vector<uint64_t> kept_from;  // by group
};

struct Side {
    std::vector<Rank> ranks;
    std::vector<RankBlocks> blocks;
    std::vector<std::vector<uint8_t>> memory;  // of each rank, at memory_base()

    uint8_t* at(size_t rank, uint64_t address) { return memory[rank].data() + (address - memory_base(rank)); }
    static uint64_t memory_base(size_t rank) { return (uint64_t{rank} + 1) << 32; }
};

struct Tokens {
    uint64_t first = 0, count = 0;
};

/// Ranks by stage, then tensor rank, then stripe, with blocks for the tokens in random order. Memory is filled with noise.
Side make_side(const SideSpec& spec, Tokens tokens, std::mt19937_64& random);

/// What the byte of a cell must be, whoever holds it. A state's row takes the place of the token.
uint64_t seed_of(const Region& region, uint32_t head, uint64_t token);
uint8_t byte_of(uint64_t seed, uint64_t byte);

struct Cell {
    size_t rank = 0;
    const Region* region = nullptr;
    uint32_t head = 0;
    uint64_t token = 0;
    uint64_t address = 0;
};
/// Every cell of the side that the tokens touch.
std::vector<Cell> cells_of_tokens(const Side& side, Tokens tokens);
void fill(Side& side, Tokens tokens);

/// The first thing that is wrong after the plan was carried out: a byte written twice, one that is not what it must be, one that should not have been written. Empty: nothing.
std::string carry_out(const Plan& plan, Side& source, Side& target, Tokens tokens, size_t pieces_max);

Request request_of(const Side& source, const Side& target, Tokens tokens, uint64_t seed);

/// Fills, plans, carries out. What is wrong, or empty.
std::string move_all(const SideSpec& source, const SideSpec& target, Tokens tokens, uint64_t seed = 1);

/// `layers` layers with parts "k" and "v".
std::vector<PartSpec> attention(uint32_t layers, uint32_t heads, uint64_t cell_bytes, uint32_t first_layer = 0);

}  // namespace mooncake::kvplan::testing
