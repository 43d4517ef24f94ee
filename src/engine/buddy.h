// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>

#include "base/error.h"

namespace mooncake {

/// Divides chunks of address space into blocks of 8 KiB to 256 MiB, powers of two; freed neighbours grow together again.
/// Keeps its books outside the memory, which peers may write to. Prefers low addresses, so that untouched memory stays so.
/// Not thread-safe.
class Buddy {
public:
    static constexpr uint64_t kSmallest = uint64_t{8} << 10;
    static constexpr uint64_t kLargest = uint64_t{256} << 20;

    /// The size of the block that holds `length` bytes; 0 for none or more than kLargest.
    static uint64_t block_size(uint64_t length) noexcept;

    /// Takes over a range, a multiple of kSmallest long, that overlaps no earlier one.
    void add_chunk(uint64_t address, uint64_t length);
    /// Nothing when no free block is large enough.
    std::optional<uint64_t> allocate(uint64_t length);
    /// `length` must be of the class asked for. kNotRegistered: no such block; kInvalidArgument: of another size.
    Result<> free(uint64_t address, uint64_t length);

    bool owns(uint64_t address) const { return allocated_.contains(address); }
    uint64_t allocated_bytes() const noexcept { return allocated_bytes_; }

private:
    static constexpr size_t kClasses = 16;

    static size_t class_of(uint64_t block_size) noexcept;
    static uint64_t size_of(size_t size_class) noexcept { return kSmallest << size_class; }

    std::map<uint64_t, uint64_t> chunks_;             // address -> length
    std::array<std::set<uint64_t>, kClasses> free_;   // addresses
    std::unordered_map<uint64_t, size_t> allocated_;  // address -> class
    uint64_t allocated_bytes_ = 0;
};

}  // namespace mooncake
