// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/error.h"

namespace mooncake::store {

/// Records named by small numbers, in chunks: they never move, growing copies nothing, and unused space is at most one chunk.
/// Number 0 is never given out, so it can mean "none". The same calls give the same numbers. A chunk without any record in use is given
/// back to the heap, but for one. Not thread-safe.
template <typename T, size_t kChunk = 512>
class Slab {
public:
    Slab() = default;
    Slab(const Slab&) = delete;
    Slab& operator=(const Slab&) = delete;
    Slab(Slab&& other) noexcept { swap(other); }
    Slab& operator=(Slab&& other) noexcept {
        swap(other);
        return *this;
    }
    ~Slab() {
        for (T* chunk : chunks_)
            if (chunk != nothing()) delete[] chunk;
    }

    /// A fresh T. If there is no memory for it, nothing has changed.
    uint32_t take() {
        if (free_.empty()) add_number();
        const uint32_t number = free_.back();
        uint32_t& used = used_[number / kChunk];
        if (used == 0) [[unlikely]]
            begin_chunk(number / kChunk);
        free_.pop_back();
        ++used;
        ++size_;
        return number;
    }
    void give_back(uint32_t number) {
        (*this)[number] = T{};
        free_.push_back(number);
        --size_;
        if (--used_[number / kChunk] == 0) [[unlikely]]
            end_chunk(number / kChunk);
    }

    T& operator[](uint32_t number) { return chunks_[number / kChunk][number % kChunk]; }
    const T& operator[](uint32_t number) const { return chunks_[number / kChunk][number % kChunk]; }
    /// How many are taken.
    size_t size() const noexcept { return size_; }
    /// Every number ever given out is below it; those given back hold a fresh T, and are only to be read.
    uint32_t limit() const noexcept { return limit_; }
    size_t memory_bytes() const noexcept {
        return held_ * kChunk * sizeof(T) + chunks_.size() * (sizeof(chunks_[0]) + sizeof(used_[0])) + free_.capacity() * sizeof(free_[0]);
    }

private:
    static constexpr size_t kNone = SIZE_MAX;

    void add_number() {
        MC_CHECK(limit_ != UINT32_MAX);
        if (limit_ / kChunk == chunks_.size()) chunks_.push_back(nothing());
        used_.resize(chunks_.size());
        free_.push_back(limit_++);
    }
    void begin_chunk(size_t chunk) {
        if (chunk == spare_) {
            spare_ = kNone;
        } else {
            chunks_[chunk] = new T[kChunk]();
            ++held_;
        }
    }
    /// One is kept, or a record that comes and goes would take its chunk along each time.
    void end_chunk(size_t chunk) {
        if (spare_ == kNone) {
            spare_ = chunk;
            return;
        }
        delete[] std::exchange(chunks_[chunk], nothing());
        --held_;
    }

    /// What the numbers of a chunk that was given back show: fresh records, never written to.
    static T* nothing() {
        static T* const chunk = new T[kChunk]();  // never deleted: the last Slab may go after everything else
        return chunk;
    }
    void swap(Slab& other) noexcept {
        chunks_.swap(other.chunks_);
        used_.swap(other.used_);
        free_.swap(other.free_);
        std::swap(limit_, other.limit_);
        std::swap(size_, other.size_);
        std::swap(held_, other.held_);
        std::swap(spare_, other.spare_);
    }

    std::vector<T*> chunks_;      // owned, but for nothing()
    std::vector<uint32_t> used_;  // of each
    std::vector<uint32_t> free_;
    uint32_t limit_ = 1;
    size_t size_ = 0;
    size_t held_ = 0;       // chunks
    size_t spare_ = kNone;  // the one that is kept although nothing of it is used
};

}  // namespace mooncake::store
