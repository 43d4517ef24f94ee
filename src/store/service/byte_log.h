// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>

namespace mooncake::store {

/// Texts in the order in which they came, in blocks of memory that are used again: to keep one for a while costs a copy and nothing else.
/// What is read stays where it is until it is dropped. Not thread-safe.
class ByteLog {
public:
    /// Returns where it lies from now on.
    uint64_t append(std::span<const std::byte> text);
    std::span<const std::byte> read(uint64_t position, size_t bytes) const;
    /// Of all that was appended before the text at that position nothing is read any more.
    void drop_before(uint64_t position) noexcept;
    void clear() noexcept { drop_before(end_); }
    /// Of memory, used or not.
    size_t blocks() const noexcept { return blocks_.size() + spares_; }

    static constexpr size_t kBlockBytes = 64 << 10;  // a longer text has a block of its own
    static constexpr size_t kSpareMax = 16;

private:
    using Memory = std::unique_ptr<std::byte[]>;
    struct Block {
        Memory memory;
        size_t bytes = 0, used = 0;
        uint64_t begin = 0;  // position of its first byte
    };

    std::deque<Block> blocks_;
    std::array<Memory, kSpareMax> spare_;
    size_t spares_ = 0;
    uint64_t end_ = 0;
};

}  // namespace mooncake::store
