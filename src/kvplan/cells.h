// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "kvplan/layout.h"

/// Cells as sets of addresses.
namespace mooncake::kvplan {

/// `bytes` bytes at every sum of one multiple of each dimension's stride; largest stride first, dimensions of one element left out.
struct Cells {
    struct Dimension {
        uint64_t count = 1, stride = 0;
    };
    std::array<Dimension, 3> dimensions{};
    uint32_t size = 0;  // of `dimensions`
    uint64_t bytes = 0;

    void add(uint64_t count, uint64_t stride);
    /// From the first byte to behind the last one, without the outermost `skip` dimensions.
    uint64_t extent(uint32_t skip = 0) const;
};

/// All cells of a region, from its base.
Cells cells_of(const Region& region);
/// Those of one of its blocks.
Cells block_of(const Region& region);

/// From the base to behind the last cell; none if no address reaches that far.
std::optional<uint64_t> extent_of(const Region& region);

/// Each dimension steps over all that lies within it: so no two cells share a byte. True of every tensor, with gaps or without.
bool is_nested(const Cells& cells);

/// No byte belongs to both, if `b` lies `offset` bytes behind `a`. Both are nested and small enough for signed offsets. False also where it would take long to tell.
bool are_disjoint(const Cells& a, const Cells& b, int64_t offset);

}  // namespace mooncake::kvplan
