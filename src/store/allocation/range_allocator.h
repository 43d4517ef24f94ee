// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "store/allocation/address_index.h"
#include "store/allocation/slab.h"
#include "store/allocation/slot_index.h"

namespace mooncake::store {

/// Hands out ranges [offset, offset + length) of one segment; knows nothing of the memory behind them. Searching and taking are two
/// steps, so that a decision can be made on a constant allocator and repeated from a log: `find` says where, `take` does it.
///
/// Free blocks hang in bins of about 3 % width. `find` looks for a near fit in the bin of the length itself, then takes the smallest
/// larger bin with something in it (two bitmaps, no loop over bins): constant time. `free` merges with both neighbours at once, so
/// the free blocks are always the complement of the used ranges, however these came about. Every block knows its neighbours in
/// address order and every used one its owner, so that a segment can list what lies in it, or next to something.
///
/// Taking ranges that somebody else chose, in any order (a node reports what it holds), needs the block around an offset. Near the last one
/// taken a few steps find it; the first search that is longer builds an index by address, which is kept up to date until it is dropped.
///
/// With `Places::kNames` there is no memory behind it, just room that is counted: a disk that says by itself where things lie. Offsets are names then, `find` gives out each
/// once, `take` accepts any (also beyond the capacity: who owns the disk knows better), and blocks are in the order in which they were taken.
///
/// Lengths are rounded up to the alignment; accounting is in rounded bytes and exact. Memory: 32 bytes per block, used or free, plus
/// about 12 per free block and 20 KiB fixed; the index 16 more per block. Not thread-safe.
class RangeAllocator {
public:
    using Block = uint32_t;  // 0: none
    enum class Places : uint8_t { kRanges, kNames };
    static constexpr uint64_t kDefaultAlignment = 64;

    /// `capacity` is rounded down to a multiple of `alignment`, a power of two.
    explicit RangeAllocator(uint64_t capacity, uint64_t alignment = kDefaultAlignment, Places places = Places::kRanges);

    /// Where a range of this length would go; nothing if no free block is found for it, or for length 0.
    std::optional<uint64_t> find(uint64_t length) const;
    /// Whether take() would succeed; costs the same.
    bool can_take(uint64_t offset, uint64_t length) const;
    /// Uses [offset, offset + rounded length) for `owner`; 0 if a part of it is not free, out of bounds, unaligned or empty. Constant
    /// time where the range begins a free block (as after `find`) or lies near the one taken before (as when taking in address order),
    /// else logarithmic, after building the index once.
    Block take(uint64_t offset, uint64_t length, uint64_t owner);
    /// Frees a used block and returns the length of the free block it is part of now.
    uint64_t free(Block block);

    // Blocks by number; a used one keeps its number until it is freed.
    Block limit() const noexcept { return blocks_.limit(); }
    bool is_used(Block block) const { return !blocks_[block].free && blocks_[block].length != 0; }
    // Blocks in address order.
    Block first() const noexcept { return first_; }
    Block next(Block block) const { return blocks_[block].next; }
    Block previous(Block block) const { return blocks_[block].previous; }
    bool is_free(Block block) const { return blocks_[block].free; }
    /// A free block no more than about 3 % shorter than the longest; 0: nothing is free.
    Block long_free_block() const noexcept;
    uint64_t offset(Block block) const { return blocks_[block].offset; }
    uint64_t length(Block block) const { return blocks_[block].length; }
    uint64_t owner(Block block) const { return blocks_[block].owner(); }
    void set_owner(Block block, uint64_t owner);
    /// The block that `offset`, below the capacity, lies in. Costs as take().
    Block block_at(uint64_t offset) const;
    /// No more ranges that others chose are to be expected.
    void drop_address_index() { by_address_.reset(); }
    /// Blocks passed in searches by address so far, and entered into indexes for them: the work that depends on the order of taking.
    uint64_t address_steps() const noexcept { return address_steps_; }

    uint64_t rounded(uint64_t length) const noexcept { return (length + alignment_ - 1) & ~(alignment_ - 1); }
    uint64_t capacity() const noexcept { return capacity_; }
    uint64_t free_bytes() const noexcept { return capacity_ - std::min(capacity_, used_bytes_); }
    uint64_t used_bytes() const noexcept { return used_bytes_; }
    size_t free_blocks() const noexcept { return free_blocks_; }
    size_t used_blocks() const noexcept { return blocks_.size() - free_blocks_; }
    size_t memory_bytes() const noexcept {
        return sizeof(*this) + blocks_.memory_bytes() + starts_.memory_bytes() + (by_address_ ? by_address_->memory_bytes() : 0);
    }
    /// As SlotIndex::longest_search(), among the free blocks.
    size_t longest_search() const { return starts_.longest_search(); }
    /// Whether all of the above agree with each other; for tests, linear.
    bool consistent() const;

private:
    static constexpr unsigned kStepBits = 5;  // 32 bins per power of two
    static constexpr size_t kBins = 60 << kStepBits;
    static constexpr int kNearTries = 8;   // in the bin of the length itself, before splitting something larger
    static constexpr int kFarTries = 256;  // there once more, when nothing larger is left
    static constexpr int kStepsMax = 32;   // from the last one taken, before an index is built;
    static constexpr int kFewSteps = 2;    // where there is one, more steps cost more than a search

    struct Node {
        uint64_t offset = 0;
        uint64_t free : 1 = 0;
        uint64_t length : 63 = 0;
        Block previous = 0, next = 0;             // by address
        uint32_t bin_previous = 0, bin_next = 0;  // free: others in the bin; used: the two halves of the owner

        uint64_t owner() const { return uint64_t{bin_previous} << 32 | bin_next; }
    };

    static size_t bin_of(uint64_t units) noexcept;   // the last bin whose least length is not above
    static size_t bin_for(uint64_t units) noexcept;  // the first bin all of whose lengths are enough
    /// Only the upper half of a product depends on all bits of both; the index looks at the lower bits of a hash.
    static uint64_t hash_of(uint64_t offset) noexcept { return std::rotl((offset + 1) * 0x9e3779b97f4a7c15, 32); }
    size_t first_bin_from(size_t bin) const noexcept;  // kBins: none
    Block search_bin(size_t bin, uint64_t length, int tries) const;
    Block free_block_at(uint64_t offset) const;
    Block free_block_around(uint64_t offset, uint64_t length) const;  // 0 also for arguments that make no sense
    Block near_block_at(uint64_t offset) const;                       // 0: too far away
    void index_by_address() const;
    Block add_block(uint64_t offset, uint64_t length, Block previous, Block next);
    void remove_block(Block block);
    Block take_name(uint64_t offset, uint64_t length, uint64_t owner);
    bool names_consistent() const;
    void enter_free(Block block);
    void leave_free(Block block);

    uint64_t alignment_;
    unsigned alignment_shift_;
    uint64_t capacity_;
    uint64_t used_bytes_ = 0;
    bool names_only_;
    uint64_t next_name_ = 0;  // above all that were ever taken; names only
    size_t free_blocks_ = 0;
    Block first_ = 0, last_ = 0;
    Block near_ = 0;  // where the last range was taken: searches by address begin there
    Slab<Node, 1024> blocks_;
    SlotIndex<0> starts_;  // the free blocks by offset
    std::array<Block, kBins> bins_{};
    std::array<uint64_t, kBins / 64> filled_{};         // one bit per bin
    uint64_t filled_words_ = 0;                         // one bit per word of it
    mutable std::unique_ptr<AddressIndex> by_address_;  // all blocks; null: not needed so far
    mutable uint64_t address_steps_ = 0;
};

}  // namespace mooncake::store
