// SPDX-License-Identifier: Apache-2.0
#include "store/allocation/range_allocator.h"

#include <bit>

namespace mooncake::store {

RangeAllocator::RangeAllocator(uint64_t capacity, uint64_t alignment, Places places)
    : alignment_(alignment), alignment_shift_(static_cast<unsigned>(std::countr_zero(alignment))), capacity_(capacity & ~(alignment - 1)),
      names_only_(places == Places::kNames) {
    MC_CHECK(std::has_single_bit(alignment) && capacity >> 62 == 0);
    static_assert(sizeof(Node) == 32 && kBins / 64 <= 64);
    if (capacity_ == 0 || names_only_) return;
    used_bytes_ = capacity_;
    first_ = last_ = add_block(0, capacity_, 0, 0);
    enter_free(first_);
}

// Lengths below 2^kStepBits units have a bin each; above, a bin is a power of two and the kStepBits bits that follow its first.
size_t RangeAllocator::bin_of(uint64_t units) noexcept {
    if (units < (1u << kStepBits)) return static_cast<size_t>(units);
    const auto exponent = static_cast<unsigned>(std::bit_width(units)) - 1 - kStepBits;
    return (size_t{exponent} << kStepBits) + static_cast<size_t>(units >> exponent);
}

size_t RangeAllocator::bin_for(uint64_t units) noexcept {
    const size_t bin = bin_of(units);
    if (units < (1u << kStepBits)) return bin;
    const auto exponent = static_cast<unsigned>(std::bit_width(units)) - 1 - kStepBits;
    return (units & ((uint64_t{1} << exponent) - 1)) == 0 ? bin : bin + 1;
}

size_t RangeAllocator::first_bin_from(size_t bin) const noexcept {
    if (bin >= kBins) return kBins;
    const size_t word = bin / 64;
    if (const uint64_t here = filled_[word] >> (bin % 64) << (bin % 64); here != 0)
        return word * 64 + static_cast<size_t>(std::countr_zero(here));
    const uint64_t words = word + 1 == 64 ? 0 : filled_words_ >> (word + 1) << (word + 1);
    if (words == 0) return kBins;
    const auto found = static_cast<size_t>(std::countr_zero(words));
    return found * 64 + static_cast<size_t>(std::countr_zero(filled_[found]));
}

RangeAllocator::Block RangeAllocator::long_free_block() const noexcept {
    if (filled_words_ == 0) return 0;
    const size_t word = 63 - static_cast<size_t>(std::countl_zero(filled_words_));
    return bins_[word * 64 + 63 - static_cast<size_t>(std::countl_zero(filled_[word]))];
}

RangeAllocator::Block RangeAllocator::search_bin(size_t bin, uint64_t length, int tries) const {
    for (Block block = bins_[bin]; block != 0 && tries-- > 0; block = blocks_[block].bin_next)
        if (blocks_[block].length >= length) return block;
    return 0;
}

std::optional<uint64_t> RangeAllocator::find(uint64_t length) const {
    if (length == 0 || length > capacity_) return std::nullopt;
    length = rounded(length);
    if (names_only_) return next_name_;
    const uint64_t units = length >> alignment_shift_;
    const size_t near = bin_of(units), enough = bin_for(units);
    Block block = near == enough ? 0 : search_bin(near, length, kNearTries);
    if (block == 0) {
        const size_t bin = first_bin_from(enough);
        block = bin != kBins ? bins_[bin] : search_bin(near, length, kFarTries);
    }
    if (block == 0) return std::nullopt;
    return blocks_[block].offset;
}

RangeAllocator::Block RangeAllocator::free_block_at(uint64_t offset) const {
    return starts_.find(hash_of(offset), [&](uint32_t block) { return blocks_[block].offset == offset; });
}

RangeAllocator::Block RangeAllocator::free_block_around(uint64_t offset, uint64_t length) const {
    if (length == 0 || length > capacity_ || offset % alignment_ != 0 || offset > capacity_ - rounded(length)) return 0;
    length = rounded(length);
    const auto holds = [&](Block block) {
        const Node& node = blocks_[block];
        return node.free && node.offset <= offset && offset + length <= node.offset + node.length;
    };
    if (const Block block = free_block_at(offset); block != 0) return holds(block) ? block : 0;
    const Block block = block_at(offset);
    return holds(block) ? block : 0;
}

RangeAllocator::Block RangeAllocator::block_at(uint64_t offset) const {
    if (blocks_[last_].offset <= offset) return last_;
    if (const Block block = near_block_at(offset); block != 0) return block;
    if (!by_address_) index_by_address();
    return by_address_->find(offset);
}

RangeAllocator::Block RangeAllocator::near_block_at(uint64_t offset) const {
    Block block = near_ != 0 ? near_ : first_;
    const int most = by_address_ ? kFewSteps : kStepsMax;
    for (int steps = 0; steps < most; ++steps, ++address_steps_) {
        const Node& node = blocks_[block];
        if (node.offset > offset) block = node.previous;
        else if (node.offset + node.length <= offset) block = node.next;
        else return block;
    }
    return 0;
}

void RangeAllocator::index_by_address() const {
    by_address_ = std::make_unique<AddressIndex>();
    for (Block block = first_; block != 0; block = blocks_[block].next, ++address_steps_) by_address_->insert(blocks_[block].offset, block);
}

bool RangeAllocator::can_take(uint64_t offset, uint64_t length) const {
    if (names_only_) return length != 0 && length >> 62 == 0 && offset >> 62 == 0;
    return free_block_around(offset, length) != 0;
}

RangeAllocator::Block RangeAllocator::take_name(uint64_t offset, uint64_t length, uint64_t owner) {
    if (!can_take(offset, length)) return 0;
    const Block block = add_block(offset, rounded(length), last_, 0);
    set_owner(block, owner);
    used_bytes_ += rounded(length);
    next_name_ = std::max(next_name_, rounded(offset) + rounded(length));
    return block;
}

RangeAllocator::Block RangeAllocator::take(uint64_t offset, uint64_t length, uint64_t owner) {
    if (names_only_) return take_name(offset, length, owner);
    const Block block = free_block_around(offset, length);
    if (block == 0) return 0;
    length = rounded(length);
    leave_free(block);
    const uint64_t before = offset - blocks_[block].offset;
    const uint64_t after = blocks_[block].length - before - length;
    blocks_[block].offset = offset;
    blocks_[block].length = length;
    if (by_address_ && before != 0) {  // what was its place becomes that of the block before it
        by_address_->erase(offset - before);
        by_address_->insert(offset, block);
    }
    if (before != 0) enter_free(add_block(offset - before, before, blocks_[block].previous, block));
    if (after != 0) enter_free(add_block(offset + length, after, block, blocks_[block].next));
    set_owner(block, owner);
    near_ = block;
    return block;
}

uint64_t RangeAllocator::free(Block block) {
    MC_CHECK(block != 0 && !blocks_[block].free && blocks_[block].length != 0);
    if (names_only_) {
        used_bytes_ -= blocks_[block].length;
        remove_block(block);
        return free_bytes();
    }
    if (const Block previous = blocks_[block].previous; previous != 0 && blocks_[previous].free) {
        leave_free(previous);
        const uint64_t offset = blocks_[block].offset;
        blocks_[block].length += blocks_[previous].length;
        blocks_[block].offset = blocks_[previous].offset;
        remove_block(previous);
        if (by_address_) {
            by_address_->erase(offset);
            by_address_->insert(blocks_[block].offset, block);
        }
    }
    if (const Block next = blocks_[block].next; next != 0 && blocks_[next].free) {
        leave_free(next);
        blocks_[block].length += blocks_[next].length;
        remove_block(next);
    }
    enter_free(block);
    return blocks_[block].length;
}

void RangeAllocator::set_owner(Block block, uint64_t owner) {
    MC_CHECK(!blocks_[block].free);
    blocks_[block].bin_previous = static_cast<uint32_t>(owner >> 32);
    blocks_[block].bin_next = static_cast<uint32_t>(owner);
}

RangeAllocator::Block RangeAllocator::add_block(uint64_t offset, uint64_t length, Block previous, Block next) {
    const Block block = blocks_.take();
    Node& node = blocks_[block];
    node.offset = offset;
    node.length = length;
    node.previous = previous;
    node.next = next;
    (previous != 0 ? blocks_[previous].next : first_) = block;
    (next != 0 ? blocks_[next].previous : last_) = block;
    if (by_address_) by_address_->insert(offset, block);
    return block;
}

void RangeAllocator::remove_block(Block block) {
    const Node& node = blocks_[block];
    if (near_ == block) near_ = node.previous;
    if (by_address_) by_address_->erase(node.offset);
    (node.previous != 0 ? blocks_[node.previous].next : first_) = node.next;
    (node.next != 0 ? blocks_[node.next].previous : last_) = node.previous;
    blocks_.give_back(block);
}

void RangeAllocator::enter_free(Block block) {
    Node& node = blocks_[block];
    const size_t bin = bin_of(node.length >> alignment_shift_);
    node.free = 1;
    node.bin_previous = 0;
    node.bin_next = bins_[bin];
    if (bins_[bin] != 0) blocks_[bins_[bin]].bin_previous = block;
    bins_[bin] = block;
    filled_[bin / 64] |= uint64_t{1} << (bin % 64);
    filled_words_ |= uint64_t{1} << (bin / 64);
    starts_.insert(hash_of(node.offset), block);
    used_bytes_ -= node.length;
    ++free_blocks_;
}

void RangeAllocator::leave_free(Block block) {
    Node& node = blocks_[block];
    const size_t bin = bin_of(node.length >> alignment_shift_);
    (node.bin_previous != 0 ? blocks_[node.bin_previous].bin_next : bins_[bin]) = node.bin_next;
    if (node.bin_next != 0) blocks_[node.bin_next].bin_previous = node.bin_previous;
    if (bins_[bin] == 0) {
        filled_[bin / 64] &= ~(uint64_t{1} << (bin % 64));
        if (filled_[bin / 64] == 0) filled_words_ &= ~(uint64_t{1} << (bin / 64));
    }
    node.free = 0;
    node.bin_previous = node.bin_next = 0;
    starts_.erase(hash_of(node.offset), block);
    used_bytes_ += node.length;
    --free_blocks_;
}

bool RangeAllocator::names_consistent() const {
    uint64_t used = 0;
    size_t blocks = 0;
    for (Block block = first_, previous = 0; block != 0; previous = block, block = blocks_[block].next, ++blocks) {
        const Node& node = blocks_[block];
        if (node.free || node.length == 0 || node.previous != previous || node.offset >= next_name_) return false;
        if (node.next == 0 && last_ != block) return false;
        used += node.length;
    }
    return used == used_bytes_ && blocks == blocks_.size() && free_blocks_ == 0;
}

bool RangeAllocator::consistent() const {
    if (names_only_) return names_consistent();
    uint64_t end = 0, free_sum = 0;
    size_t blocks = 0, frees = 0;
    bool previous_free = false;
    for (Block block = first_, previous = 0; block != 0; previous = block, block = blocks_[block].next) {
        const Node& node = blocks_[block];
        if (node.offset != end || node.length == 0 || node.length % alignment_ != 0 || node.previous != previous) return false;
        if (node.free && (previous_free || free_block_at(node.offset) != block)) return false;
        if (by_address_ && by_address_->find(node.offset) != block) return false;
        if (by_address_ && by_address_->find(node.offset + node.length - 1) != block) return false;
        end += node.length;
        ++blocks;
        previous_free = node.free;
        if (node.free) free_sum += node.length, ++frees;
        if (node.next == 0 && last_ != block) return false;
    }
    size_t binned = 0;
    for (size_t bin = 0; bin < kBins; ++bin) {
        if ((bins_[bin] != 0) != ((filled_[bin / 64] >> (bin % 64) & 1) != 0)) return false;
        for (Block block = bins_[bin]; block != 0; block = blocks_[block].bin_next, ++binned)
            if (!blocks_[block].free || bin_of(blocks_[block].length >> alignment_shift_) != bin) return false;
    }
    return end == capacity_ && free_sum == free_bytes() && frees == free_blocks_ && binned == frees && blocks == blocks_.size() &&
           starts_.size() == frees && (!by_address_ || by_address_->size() == blocks);
}

}  // namespace mooncake::store
