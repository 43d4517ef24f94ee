// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "base/error.h"

/// Who owns what by the rules of the frameworks, for layouts that are made rather than asked for.
namespace mooncake::kvplan {

struct HeadRange {
    uint32_t first = 0, count = 0;
    bool operator==(const HeadRange&) const = default;
};

/// The heads of one rank of `ranks` tensor-parallel ones. `total_heads` is the model's: with fewer heads than ranks, neighbouring ranks hold the same one (a latent: all ranks
/// the only one). Where ranks do not divide heads, shares differ by one head.
MC_EXPORT Result<HeadRange> heads_of_rank(uint32_t total_heads, uint32_t ranks, uint32_t rank);

/// How many layers each pipeline stage has, where the user did not say. The engines differ in who gets the remainder.
MC_EXPORT Result<std::vector<uint32_t>> vllm_stages(uint32_t layers, uint32_t stages);    // the last but one, and so on forwards
MC_EXPORT Result<std::vector<uint32_t>> sglang_stages(uint32_t layers, uint32_t stages);  // the last, and so on forwards

}  // namespace mooncake::kvplan
