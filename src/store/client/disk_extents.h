// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "engine/engine.h"

namespace mooncake::store {

/// Which bytes of one value are wanted from a disk, and where they go. Not thread-safe.
class DiskExtents {
public:
    struct Extent {
        uint64_t begin = 0, end = 0;  // in the value
    };

    /// `blocks`: their remote side counts from the value's first byte; what lies behind its end (the table of hashes, which a disk gives to nobody) is left out.
    DiskExtents(std::vector<Block> blocks, uint64_t length) : blocks_(std::move(blocks)) {
        std::erase_if(blocks_, [length](const Block& block) { return block.remote >= length || block.length == 0; });
        std::stable_sort(blocks_.begin(), blocks_.end(), [](const Block& a, const Block& b) { return a.remote < b.remote; });
        for (const Block& block : blocks_) {
            const uint64_t end = block.remote + block.length;
            if (extents_.empty() || block.remote > extents_.back().end) extents_.push_back({block.remote, end});
            else extents_.back().end = std::max(extents_.back().end, end);
        }
    }

    const std::vector<Block>& blocks() const noexcept { return blocks_; }
    /// Whether everything has come.
    bool done() const noexcept {
        return std::all_of(extents_.begin(), extents_.end(), [](const Extent& extent) { return extent.begin >= extent.end; });
    }
    /// What of them has not come yet: [begin, end), which may be nothing.
    const std::vector<Extent>& extents() const noexcept { return extents_; }
    /// One has come so far.
    void advance(size_t extent, uint64_t to) { extents_[extent].begin = to; }
    /// The blocks' parts in [begin, end) of the value, which lies at `address`.
    void place(uint64_t begin, uint64_t end, uint64_t address, std::vector<Block>& to) const {
        for (const Block& block : blocks_) {
            if (block.remote >= end) break;
            const uint64_t from = std::max(begin, block.remote), until = std::min(end, block.remote + block.length);
            if (from >= until) continue;
            to.push_back({.local = block.local + (from - block.remote),
                          .remote = address + (from - begin),
                          .length = until - from,
                          .copier = block.copier});
        }
    }

private:
    std::vector<Block> blocks_;    // by their place in the value
    std::vector<Extent> extents_;  // apart
};

}  // namespace mooncake::store
