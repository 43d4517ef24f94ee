// SPDX-License-Identifier: Apache-2.0
#include "kvplan/ownership.h"

namespace mooncake::kvplan {
namespace {

constexpr uint32_t kStagesMax = 65536;

/// Even shares, the remainder one each to stages from `behind` places before the end forwards.
Result<std::vector<uint32_t>> share_layers(uint32_t layers, uint32_t stages, uint32_t behind) {
    if (stages == 0 || stages > kStagesMax) return fail(Code::kInvalidArgument, "{} pipeline stages", stages);
    std::vector<uint32_t> shares(stages, layers / stages);
    // There is always room: the remainder is less than the number of stages.
    for (uint32_t i = 0; i < layers % stages; ++i) ++shares[stages - 1 - behind - i];
    return shares;
}

}  // namespace

Result<HeadRange> heads_of_rank(uint32_t total_heads, uint32_t ranks, uint32_t rank) {
    if (total_heads == 0) return fail(Code::kInvalidArgument, "a model without heads");
    if (rank >= ranks) return fail(Code::kInvalidArgument, "tensor-parallel rank {} of {}", rank, ranks);
    const auto first = static_cast<uint32_t>(uint64_t{rank} * total_heads / ranks);
    if (ranks >= total_heads) return HeadRange{first, 1};
    return HeadRange{first, static_cast<uint32_t>((uint64_t{rank} + 1) * total_heads / ranks) - first};
}

Result<std::vector<uint32_t>> vllm_stages(uint32_t layers, uint32_t stages) { return share_layers(layers, stages, stages > 1 ? 1 : 0); }

Result<std::vector<uint32_t>> sglang_stages(uint32_t layers, uint32_t stages) { return share_layers(layers, stages, 0); }

}  // namespace mooncake::kvplan
