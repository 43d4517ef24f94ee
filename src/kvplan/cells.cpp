// SPDX-License-Identifier: Apache-2.0
#include "kvplan/cells.h"

#include <algorithm>

namespace mooncake::kvplan {
namespace {

constexpr int64_t kElementsTried = 64;

/// Cells without their outermost dimensions.
struct Inner {
    const Cells& cells;
    uint32_t skip;

    bool has_dimension() const { return skip < cells.size; }
    const Cells::Dimension& dimension() const { return cells.dimensions[skip]; }
    uint64_t stride() const { return has_dimension() ? dimension().stride : 0; }
    int64_t extent() const { return static_cast<int64_t>(cells.extent(skip)); }
    Inner next() const { return {cells, skip + 1}; }
};

int64_t divide_down(int64_t value, int64_t by) { return value / by - (value % by < 0 ? 1 : 0); }

bool disjoint(Inner a, Inner b, int64_t offset);

/// Equal strides: only neighbours one step apart can meet.
bool disjoint_in_step(Inner a, Inner b, int64_t offset) {
    const auto stride = static_cast<int64_t>(a.stride());
    const int64_t steps = divide_down(offset, stride);
    for (const int64_t apart : {steps, steps + 1}) {
        const bool both_there = apart < static_cast<int64_t>(a.dimension().count) && -apart < static_cast<int64_t>(b.dimension().count);
        if (both_there && !disjoint(a.next(), b.next(), offset - apart * stride)) return false;
    }
    return true;
}

/// Unequal strides: each element of the wider one that touches the other's extent.
bool disjoint_one_by_one(Inner wide, Inner other, int64_t offset) {
    const auto stride = static_cast<int64_t>(wide.stride());
    const int64_t first = std::max<int64_t>(0, divide_down(offset, stride));  // those before end before: nested
    const int64_t last = std::min(static_cast<int64_t>(wide.dimension().count) - 1, divide_down(offset + other.extent(), stride));
    if (last - first >= kElementsTried) return false;
    for (int64_t i = first; i <= last; ++i) {
        if (!disjoint(wide.next(), other, offset - i * stride)) return false;
    }
    return true;
}

bool disjoint(Inner a, Inner b, int64_t offset) {
    if (offset >= a.extent() || -offset >= b.extent()) return true;
    if (!a.has_dimension() && !b.has_dimension()) return false;
    if (a.stride() == b.stride()) return disjoint_in_step(a, b, offset);
    return a.stride() > b.stride() ? disjoint_one_by_one(a, b, offset) : disjoint_one_by_one(b, a, -offset);
}

}  // namespace

void Cells::add(uint64_t count, uint64_t stride) {
    if (count <= 1) return;
    uint32_t at = size++;
    for (; at > 0 && dimensions[at - 1].stride < stride; --at) dimensions[at] = dimensions[at - 1];
    dimensions[at] = {count, stride};
}

uint64_t Cells::extent(uint32_t skip) const {
    uint64_t sum = bytes;
    for (uint32_t i = skip; i < size; ++i) sum += (dimensions[i].count - 1) * dimensions[i].stride;
    return sum;
}

Cells block_of(const Region& region) {
    Cells cells;
    cells.bytes = region.cell_bytes;
    cells.add(region.rows != 0 ? region.rows : region.block_tokens, region.token_stride);
    cells.add(region.heads, region.head_stride);
    return cells;
}

Cells cells_of(const Region& region) {
    Cells cells = block_of(region);
    cells.add(region.blocks, region.block_stride);
    return cells;
}

std::optional<uint64_t> extent_of(const Region& region) {
    const Cells cells = cells_of(region);
    uint64_t sum = cells.bytes;
    for (uint32_t i = 0; i < cells.size; ++i) {
        uint64_t span = 0;
        if (__builtin_mul_overflow(cells.dimensions[i].count - 1, cells.dimensions[i].stride, &span)) return std::nullopt;
        if (__builtin_add_overflow(sum, span, &sum)) return std::nullopt;
    }
    return sum;
}

bool is_nested(const Cells& cells) {
    for (uint32_t i = 0; i < cells.size; ++i) {
        if (cells.dimensions[i].stride < cells.extent(i + 1)) return false;
    }
    return true;
}

bool are_disjoint(const Cells& a, const Cells& b, int64_t offset) { return disjoint({a, 0}, {b, 0}, offset); }

}  // namespace mooncake::kvplan
