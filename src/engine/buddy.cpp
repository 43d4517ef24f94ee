// SPDX-License-Identifier: Apache-2.0
#include "engine/buddy.h"

#include <algorithm>
#include <bit>

namespace mooncake {

uint64_t Buddy::block_size(uint64_t length) noexcept {
    if (length == 0 || length > kLargest) return 0;
    return std::max(kSmallest, std::bit_ceil(length));
}

size_t Buddy::class_of(uint64_t block_size) noexcept { return static_cast<size_t>(std::countr_zero(block_size / kSmallest)); }

void Buddy::add_chunk(uint64_t address, uint64_t length) {
    MC_CHECK(length != 0 && length % kSmallest == 0);
    chunks_.emplace(address, length);
    // Largest blocks first, then the rest of the range: every block lies at a multiple of its size from the chunk's start.
    for (uint64_t offset = 0; offset < length;) {
        const uint64_t size = std::min(kLargest, std::bit_floor(length - offset));
        free_[class_of(size)].insert(address + offset);
        offset += size;
    }
}

std::optional<uint64_t> Buddy::allocate(uint64_t length) {
    const uint64_t size = block_size(length);
    if (size == 0) return std::nullopt;
    const size_t wanted = class_of(size);
    size_t found = wanted;
    while (found < kClasses && free_[found].empty()) ++found;
    if (found == kClasses) return std::nullopt;
    const uint64_t address = *free_[found].begin();
    free_[found].erase(free_[found].begin());
    while (found > wanted) {  // keep the lower half
        --found;
        free_[found].insert(address + size_of(found));
    }
    allocated_.emplace(address, wanted);
    allocated_bytes_ += size;
    return address;
}

Result<> Buddy::free(uint64_t address, uint64_t length) {
    const auto block = allocated_.find(address);
    if (block == allocated_.end()) return fail(Code::kNotRegistered, "no buffer was allocated at {:#x}", address);
    size_t size_class = block->second;
    if (block_size(length) != size_of(size_class))
        return fail(Code::kInvalidArgument, "the buffer at {:#x} is one of {} bytes, not of {}", address, size_of(size_class), length);
    allocated_.erase(block);
    allocated_bytes_ -= size_of(size_class);

    const auto [start, chunk_length] = *std::prev(chunks_.upper_bound(address));
    uint64_t offset = address - start;
    for (; size_class + 1 < kClasses; ++size_class) {
        const uint64_t neighbour = offset ^ size_of(size_class);
        if (neighbour >= chunk_length || free_[size_class].erase(start + neighbour) == 0) break;
        offset = std::min(offset, neighbour);
    }
    free_[size_class].insert(start + offset);
    return {};
}

}  // namespace mooncake
