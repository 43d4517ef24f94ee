// SPDX-License-Identifier: Apache-2.0
#include "store/client/partial_chunks.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "store/protocol/stored_form.h"

namespace mooncake::store {

void PartialChunks::insert(std::vector<Range>& seen, Range range) {
    auto next = std::lower_bound(seen.begin(), seen.end(), range,
                                 [](const Range& one, const Range& other) { return one.second < other.first; });
    const auto first = next;
    while (next != seen.end() && next->first <= range.second) {
        range = {std::min(range.first, next->first), std::max(range.second, next->second)};
        ++next;
    }
    seen.insert(seen.erase(first, next), range);
}

uint64_t PartialChunks::add(uint64_t chunk, uint64_t whole, uint64_t from, const std::byte* bytes, uint64_t length) noexcept {
    std::unique_ptr<std::byte[]> complete;
    try {
        Lock lock(mutex_);
        Partial& partial = partials_[chunk];
        if (!partial.bytes && !spares_.empty()) {
            partial.bytes = std::move(spares_.back());
            spares_.pop_back();
        }
        if (!partial.bytes) partial.bytes.reset(new std::byte[kChunkBytes]);
        insert(partial.seen, {from, from + length});
        std::memcpy(partial.bytes.get() + from, bytes, length);
        if (partial.seen.front() != Range{0, whole}) return 0;
        complete = std::move(partial.bytes);
        partials_.erase(chunk);
    } catch (const std::bad_alloc&) {
        return 0;  // whoever needs it looks for himself
    }
    const uint64_t hash = hash_bytes({complete.get(), whole});
    Lock lock(mutex_);
    if (spares_.size() == spares_.capacity() && spares_.size() < kSparesMax) {
        try {
            spares_.reserve(kSparesMax);
        } catch (const std::bad_alloc&) {
            return hash;
        }
    }
    if (spares_.size() < spares_.capacity()) spares_.push_back(std::move(complete));
    return hash;
}

void PartialChunks::forget(uint64_t chunk, Range range) noexcept {
    Lock lock(mutex_);
    const auto found = partials_.find(chunk);
    if (found == partials_.end()) return;
    std::vector<Range>& seen = found->second.seen;
    const auto touched = [&](const Range& one) { return one.first < range.second && range.first < one.second; };
    if (std::none_of(seen.begin(), seen.end(), touched)) return;
    // What is left of the others would need memory; it is seen again at a small price.
    std::erase_if(seen, touched);
    if (seen.empty()) partials_.erase(found);
}

std::vector<PartialChunks::Range> PartialChunks::take(uint64_t chunk, uint64_t whole, std::byte* to) {
    std::vector<Range> missing;
    uint64_t at = 0;
    Lock lock(mutex_);
    if (const auto found = partials_.find(chunk); found != partials_.end()) {
        for (const auto& [from, end] : found->second.seen) {
            std::memcpy(to + from, found->second.bytes.get() + from, end - from);
            if (at < from) missing.emplace_back(at, from);
            at = end;
        }
        partials_.erase(found);
    }
    if (at < whole) missing.emplace_back(at, whole);
    return missing;
}

// ---- one piece

SeenPiece::SeenPiece(const std::byte* local, uint64_t offset, uint64_t length, uint64_t value_length)
    : local_(local), offset_(offset), value_length_(value_length), first_(offset / kChunkBytes),
      hashes_(length == 0 ? 0 : chunk_count(offset + length) - first_) {}

void SeenPiece::begin(const std::byte* local, uint64_t length) noexcept {
    const uint64_t from = offset_ + static_cast<uint64_t>(local - local_), to = from + length;
    for (uint64_t chunk = from / kChunkBytes; chunk * kChunkBytes < to; ++chunk) {
        const uint64_t start = chunk * kChunkBytes;
        hashes_[chunk - first_] = 0;
        partials_.forget(chunk, {std::max(from, start) - start, std::min(to, start + kChunkBytes) - start});
    }
}

void SeenPiece::passed(const std::byte* local, const std::byte* bytes, uint64_t length) noexcept {
    const uint64_t from = offset_ + static_cast<uint64_t>(local - local_), to = from + length;
    for (uint64_t chunk = from / kChunkBytes; chunk * kChunkBytes < to; ++chunk) {
        const uint64_t start = chunk * kChunkBytes, end = std::min(start + kChunkBytes, value_length_);
        const uint64_t begin = std::max(from, start), now = std::min(to, end) - begin;
        const std::byte* const at = bytes + (begin - from);
        const uint64_t hash = now == end - start ? hash_bytes({at, now}) : partials_.add(chunk, end - start, begin - start, at, now);
        if (hash != 0) hashes_[chunk - first_] = hash;
    }
}

}  // namespace mooncake::store
