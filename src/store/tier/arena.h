// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"

namespace mooncake::store {

/// Pages of its own, aligned for the disk; they exist when they are first touched. Given back to the system, not to the heap: should a device still
/// write into them then, nobody else has them.
class Pages {
public:
    Pages() = default;
    static Result<Pages> create(uint64_t bytes);
    Pages(Pages&& other) noexcept;
    Pages& operator=(Pages&& other) noexcept;
    ~Pages();

    std::byte* data() const noexcept { return memory_.data(); }
    uint64_t size() const noexcept { return memory_.size(); }
    std::span<std::byte> bytes() const noexcept { return memory_; }

private:
    std::span<std::byte> memory_;
};

/// Equal buffers cut from one mapping. Not thread-safe.
class BufferPool {
public:
    static Result<BufferPool> create(size_t count, uint64_t bytes_each);
    BufferPool() = default;

    /// Null when all are out.
    std::byte* take() noexcept;
    void give_back(std::byte* buffer) noexcept { free_.push_back(buffer); }
    uint64_t bytes_each() const noexcept { return bytes_each_; }
    bool owns(const std::byte* buffer) const noexcept { return buffer >= pages_.data() && buffer < pages_.data() + pages_.size(); }

private:
    Pages pages_;
    uint64_t bytes_each_ = 0;
    std::vector<std::byte*> free_;
};

}  // namespace mooncake::store
