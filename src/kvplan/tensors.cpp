// SPDX-License-Identifier: Apache-2.0
#include "kvplan/tensors.h"

#include <array>

namespace mooncake::kvplan {
namespace {

constexpr size_t kAxes = 6;
constexpr std::array<const char*, kAxes> kNames{"layer", "part", "block", "token", "head", "channel"};

struct Extents {
    std::array<TensorAxis, kAxes> axes;  // by Axis
    uint64_t bytes = 0;                  // from the base to behind the last element

    const TensorAxis& operator[](Axis axis) const { return axes[static_cast<size_t>(axis)]; }
};

Result<Extents> extents_of(const Tensor& tensor) {
    Extents extents;
    std::array<bool, kAxes> seen{};
    uint64_t dense = tensor.element_bytes;
    extents.bytes = dense;
    if (tensor.axes.empty() || tensor.axes.back().axis != Axis::kChannel)
        return fail(Code::kInvalidArgument, "channels are not the innermost axis");
    for (auto at = tensor.axes.rbegin(); at != tensor.axes.rend(); ++at) {
        const auto number = static_cast<size_t>(at->axis);
        if (number >= kAxes) return fail(Code::kInvalidArgument, "axis {} is none", number);
        if (seen[number]) return fail(Code::kInvalidArgument, "axis {} occurs twice", kNames[number]);
        if (at->size == 0) return fail(Code::kInvalidArgument, "axis {} has no elements", kNames[number]);
        seen[number] = true;
        extents.axes[number] = *at;
        uint64_t& stride = extents.axes[number].stride;
        if (stride == 0) stride = dense;
        uint64_t span = 0;
        if (__builtin_mul_overflow(stride, at->size, &dense) || __builtin_mul_overflow(stride, at->size - 1, &span) ||
            __builtin_add_overflow(extents.bytes, span, &extents.bytes)) {
            return fail(Code::kInvalidArgument, "axis {} reaches beyond all addresses", kNames[number]);
        }
    }
    return extents;
}

Result<> check_names(const Tensor& tensor, const Extents& extents) {
    if (tensor.element_bytes == 0) return fail(Code::kInvalidArgument, "elements of 0 bytes");
    if (extents[Axis::kChannel].stride != tensor.element_bytes) return fail(Code::kInvalidArgument, "channels with gaps between them");
    if (tensor.layers.size() != extents[Axis::kLayer].size) {
        return fail(Code::kInvalidArgument, "{} names for {} layers", tensor.layers.size(), extents[Axis::kLayer].size);
    }
    if (tensor.parts.size() != extents[Axis::kPart].size) {
        return fail(Code::kInvalidArgument, "{} names for {} parts", tensor.parts.size(), extents[Axis::kPart].size);
    }
    if (extents[Axis::kHead].size > UINT32_MAX || extents[Axis::kToken].size > UINT32_MAX) {
        return fail(Code::kInvalidArgument, "more heads or tokens than 32 bits count");
    }
    return {};
}

}  // namespace

Result<std::vector<Region>> regions_of_tensor(const Tensor& tensor) {
    MC_ASSIGN_OR_RETURN(const Extents extents, extents_of(tensor));
    MC_RETURN_IF_ERROR(check_names(tensor, extents));
    std::vector<Region> regions;
    regions.reserve(tensor.layers.size() * tensor.parts.size());
    for (size_t layer = 0; layer < tensor.layers.size(); ++layer) {
        for (size_t part = 0; part < tensor.parts.size(); ++part) {
            Region region;
            region.layer = tensor.layers[layer];
            region.part = tensor.parts[part];
            const uint64_t offset = layer * extents[Axis::kLayer].stride + part * extents[Axis::kPart].stride;
            region.base = tensor.base + offset;
            region.length = extents.bytes - offset;
            region.blocks = extents[Axis::kBlock].size;
            region.block_stride = extents[Axis::kBlock].stride;
            region.block_tokens = static_cast<uint32_t>(extents[Axis::kToken].size);
            region.rows = tensor.is_state ? region.block_tokens : 0;
            region.token_stride = extents[Axis::kToken].stride;
            region.heads = static_cast<uint32_t>(extents[Axis::kHead].size);
            region.head_stride = extents[Axis::kHead].stride;
            region.cell_bytes = extents[Axis::kChannel].size * tensor.element_bytes;
            region.first_head = tensor.first_head;
            region.total_heads = tensor.total_heads;
            region.group = tensor.group;
            regions.push_back(std::move(region));
        }
    }
    return regions;
}

}  // namespace mooncake::kvplan
