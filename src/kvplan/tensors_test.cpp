// SPDX-License-Identifier: Apache-2.0
#include "kvplan/tensors.h"

#include <gtest/gtest.h>

#include "kvplan/check.h"
#include "kvplan/ownership.h"

namespace mooncake::kvplan {
namespace {

TEST(Tensors, LayersInsideBlocksAndHalvesForKAndV) {
    // block, layer, part, head, token, channel
    Tensor tensor{
        .base = 4096,
        .element_bytes = 2,
        .axes = {{Axis::kBlock, 10}, {Axis::kLayer, 3}, {Axis::kPart, 2}, {Axis::kHead, 4}, {Axis::kToken, 16}, {Axis::kChannel, 128}},
        .layers = {"a", "b", "c"},
        .parts = {"k", "v"},
        .first_head = 4,
        .total_heads = 8};
    const auto regions = regions_of_tensor(tensor);
    ASSERT_TRUE(regions) << regions.error().to_string();
    ASSERT_EQ(regions->size(), 6u);
    const Region& last = regions->back();
    constexpr uint64_t kHead = 16 * 256, kPart = 4 * kHead;
    EXPECT_EQ(last.layer + last.part, "cv");
    EXPECT_EQ(last.base, 4096 + 5 * kPart);
    EXPECT_EQ(last.block_stride, 6 * kPart);
    EXPECT_EQ(last.head_stride, kHead);
    EXPECT_EQ(last.token_stride, 256u);
    EXPECT_EQ(last.cell_bytes, 256u);
    EXPECT_EQ(last.length, 10 * 6 * kPart - 5 * kPart);
    const Rank rank{.segment = "r", .regions = *regions};
    EXPECT_TRUE(check_rank(rank));
    // They lie within each other and share no byte.
    const std::vector<std::vector<uint64_t>> used{{0, 3, 9}};
    EXPECT_TRUE(check_disjoint(rank, used));
}

TEST(Tensors, GivenStridesAndMissingAxes) {
    const Tensor tensor{.base = 64,
                        .element_bytes = 1,
                        .axes = {{Axis::kToken, 7, 100}, {Axis::kChannel, 10}},
                        .layers = {"state"},
                        .parts = {"conv.q"},
                        .total_heads = 1,
                        .is_state = true,
                        .group = 1};
    const auto regions = regions_of_tensor(tensor);
    ASSERT_TRUE(regions) << regions.error().to_string();
    const Region& region = regions->front();
    EXPECT_EQ(region.rows, 7u);
    EXPECT_EQ(region.blocks, 1u);
    EXPECT_EQ(region.heads, 1u);
    EXPECT_EQ(region.token_stride, 100u);
    EXPECT_EQ(region.length, 610u);
    EXPECT_TRUE(check_rank({.segment = "r", .regions = *regions}));
}

TEST(Tensors, WhatMakesNoCellsIsRefused) {
    const Tensor good{.element_bytes = 2,
                      .axes = {{Axis::kBlock, 2}, {Axis::kHead, 2}, {Axis::kChannel, 4}},
                      .layers = {"a"},
                      .parts = {"k"},
                      .total_heads = 2};
    ASSERT_TRUE(regions_of_tensor(good));
    const auto refused = [&](auto change) {
        Tensor tensor = good;
        change(tensor);
        const auto regions = regions_of_tensor(tensor);
        return !regions && regions.error().code() == Code::kInvalidArgument;
    };
    EXPECT_TRUE(refused([](Tensor& tensor) { tensor.axes.clear(); }));
    EXPECT_TRUE(refused([](Tensor& tensor) { std::swap(tensor.axes[1], tensor.axes[2]); }));
    EXPECT_TRUE(refused([](Tensor& tensor) { tensor.axes[2].stride = 4; }));
    EXPECT_TRUE(refused([](Tensor& tensor) { tensor.axes[0].axis = Axis::kHead; }));
    EXPECT_TRUE(refused([](Tensor& tensor) { tensor.axes[0].axis = static_cast<Axis>(9); }));
    EXPECT_TRUE(refused([](Tensor& tensor) { tensor.axes[0].size = 0; }));
    EXPECT_TRUE(refused([](Tensor& tensor) { tensor.axes[0].size = UINT64_MAX; }));
    EXPECT_TRUE(refused([](Tensor& tensor) { tensor.element_bytes = 0; }));
    EXPECT_TRUE(refused([](Tensor& tensor) { tensor.layers.clear(); }));
    EXPECT_TRUE(refused([](Tensor& tensor) { tensor.parts.push_back("v"); }));
}

TEST(Ownership, HeadsOfRanks) {
    EXPECT_EQ(heads_of_rank(8, 4, 1).value(), (HeadRange{2, 2}));
    EXPECT_EQ(heads_of_rank(4, 8, 5).value(), (HeadRange{2, 1}));  // two ranks for each head
    EXPECT_EQ(heads_of_rank(1, 8, 7).value(), (HeadRange{0, 1}));  // a latent is everywhere
    EXPECT_EQ(heads_of_rank(8, 3, 0).value(), (HeadRange{0, 2}));
    EXPECT_EQ(heads_of_rank(8, 3, 2).value(), (HeadRange{5, 3}));
    for (const uint32_t heads : {1u, 2u, 3u, 7u, 8u, 12u}) {
        for (uint32_t ranks = 1; ranks <= 20; ++ranks) {
            uint32_t end = 0;
            for (uint32_t rank = 0; rank < ranks; ++rank) {
                const HeadRange range = heads_of_rank(heads, ranks, rank).value();
                EXPECT_LE(range.first, end);  // no hole
                end = range.first + range.count;
            }
            EXPECT_EQ(end, heads);
        }
    }
    EXPECT_FALSE(heads_of_rank(0, 1, 0));
    EXPECT_FALSE(heads_of_rank(8, 4, 4));
    EXPECT_FALSE(heads_of_rank(8, 0, 0));
}

TEST(Ownership, TheEnginesGiveTheRemainderToDifferentStages) {
    using Stages = std::vector<uint32_t>;
    EXPECT_EQ(vllm_stages(80, 4).value(), (Stages{20, 20, 20, 20}));
    EXPECT_EQ(vllm_stages(62, 4).value(), (Stages{15, 16, 16, 15}));
    EXPECT_EQ(vllm_stages(63, 4).value(), (Stages{16, 16, 16, 15}));
    EXPECT_EQ(sglang_stages(62, 4).value(), (Stages{15, 15, 16, 16}));
    EXPECT_EQ(vllm_stages(61, 1).value(), Stages{61});
    EXPECT_FALSE(vllm_stages(61, 0));
    EXPECT_FALSE(sglang_stages(61, 1 << 30));
}

}  // namespace
}  // namespace mooncake::kvplan
