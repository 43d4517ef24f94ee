// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/error.h"

namespace mooncake::store {

/// Records named by small numbers, in chunks: they never move, growing copies nothing, and unused space is at most one chunk.
/// Number 0 is never given out, so it can mean "none". The same calls give the same numbers. Not thread-safe.
template <typename T, size_t kChunk = 512>
class Slab {
public:
    /// A fresh T.
    uint32_t take() {
        ++size_;
        if (!free_.empty()) {
            const uint32_t number = free_.back();
            free_.pop_back();
            return number;
        }
        MC_CHECK(limit_ != UINT32_MAX);
        if (limit_ % kChunk == 0 || chunks_.empty()) chunks_.push_back(std::make_unique<T[]>(kChunk));
        return limit_++;
    }
    void give_back(uint32_t number) {
        (*this)[number] = T{};
        free_.push_back(number);
        --size_;
    }

    T& operator[](uint32_t number) { return chunks_[number / kChunk][number % kChunk]; }
    const T& operator[](uint32_t number) const { return chunks_[number / kChunk][number % kChunk]; }
    /// How many are taken.
    size_t size() const noexcept { return size_; }
    /// Every number ever given out is below it; those given back hold a fresh T.
    uint32_t limit() const noexcept { return limit_; }
    size_t memory_bytes() const noexcept {
        return chunks_.size() * (kChunk * sizeof(T) + sizeof(chunks_[0])) + free_.capacity() * sizeof(free_[0]);
    }

private:
    std::vector<std::unique_ptr<T[]>> chunks_;
    std::vector<uint32_t> free_;
    uint32_t limit_ = 1;
    size_t size_ = 0;
};

}  // namespace mooncake::store
