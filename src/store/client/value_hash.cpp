// SPDX-License-Identifier: Apache-2.0
#include "store/client/value_hash.h"

#include <algorithm>
#include <cstring>

#include "store/client/host_view.h"
#include "store/member/any_memory.h"
#include "store/protocol/stored_form.h"

namespace mooncake::store {

void ValueHash::start(std::span<const Piece> pieces, uint64_t length, Direction direction, const Engine* engine) {
    pieces_ = pieces;
    length_ = length;
    direction_ = direction;
    devices_ = nullptr;
    only_ = 0;
    table_.assign(length > kChunkBytes ? chunk_count(length) : 0, 0);
    more_.clear();
    if (pieces.size() > 1) more_.reserve(pieces.size() - 1);
    uint64_t offset = 0;
    for (size_t i = 0; i < pieces.size(); ++i) {
        const uint64_t part = std::min(pieces[i].length, length - offset);
        const bool host = engine == nullptr || store::is_host(*engine, pieces[i].data, part);
        if (!host) devices_ = engine;
        if (i == 0) first_ = Part(this, pieces[i].data, offset, part, host);
        else more_.emplace_back(this, pieces[i].data, offset, part, host);
        offset += part;
    }
}

void ValueHash::Part::copy(std::byte* to, const std::byte* from, uint64_t length) noexcept {
    const std::byte* const local = owner_->direction_ == Direction::kRead ? to : from;
    owner_->copy(offset_ + static_cast<uint64_t>(local - local_), to, from, length);
}

void ValueHash::Part::passed(const std::byte* local, uint64_t length) noexcept {
    owner_->look(offset_ + static_cast<uint64_t>(local - local_), local, length);
}

uint64_t ValueHash::chunk_end(uint64_t chunk) const noexcept { return std::min((chunk + 1) * kChunkBytes, length_); }

void ValueHash::forget(uint64_t offset, uint64_t length) noexcept {
    if (length == 0) return;
    for (uint64_t chunk = offset / kChunkBytes; chunk * kChunkBytes < offset + length; ++chunk) entry(chunk) = 0;
}

void ValueHash::copy(uint64_t offset, std::byte* to, const std::byte* from, uint64_t length) noexcept {
    while (length > 0) {
        const uint64_t chunk = offset / kChunkBytes, begin = chunk * kChunkBytes, end = chunk_end(chunk);
        const uint64_t now = std::min(length, end - offset);
        if (now == end - begin) entry(chunk) = copy_and_hash(to, from, now);
        else std::memcpy(to, from, now);
        offset += now;
        to += now;
        from += now;
        length -= now;
    }
}

void ValueHash::look(uint64_t offset, const std::byte* at, uint64_t length) noexcept {
    // Chunks of which only a part passes here are left to checksum().
    const uint64_t end = offset + length;
    for (uint64_t chunk = (offset + kChunkBytes - 1) / kChunkBytes; chunk * kChunkBytes < end && chunk_end(chunk) <= end; ++chunk) {
        const uint64_t begin = chunk * kChunkBytes;
        entry(chunk) = hash_bytes({at + (begin - offset), chunk_end(chunk) - begin});
    }
}

uint64_t ValueHash::hash_chunk(uint64_t chunk) const {
    const uint64_t begin = chunk * kChunkBytes, end = chunk_end(chunk);
    std::vector<std::span<const std::byte>> pieces;
    uint64_t at = 0;
    for (const Piece& piece : pieces_) {
        const uint64_t from = std::max(begin, at), to = std::min(end, at + piece.length);
        if (from < to && from == begin && to == end) return hash_bytes({piece.data + (from - at), to - from});
        if (from < to) pieces.emplace_back(piece.data + (from - at), to - from);
        at += piece.length;
        if (at >= end) break;
    }
    std::vector<uint64_t> none;
    return hash_value(pieces, none);
}

Result<> ValueHash::hash_from_devices() {
    constexpr uint64_t kChunksAtOnce = HostView::kBytesMax / kChunkBytes;
    HostView view(*devices_);
    const uint64_t chunks = chunk_count(length_);
    for (uint64_t first = 0; first < chunks; first += kChunksAtOnce) {
        const uint64_t last = std::min(first + kChunksAtOnce, chunks) - 1, begin = first * kChunkBytes;
        bool known = true;
        for (uint64_t chunk = first; chunk <= last; ++chunk) known &= entry(chunk) != 0;
        if (known) continue;
        MC_ASSIGN_OR_RETURN(const std::span<const std::byte> bytes, view.look(pieces_, begin, chunk_end(last)));
        for (uint64_t chunk = first; chunk <= last; ++chunk)
            entry(chunk) = hash_bytes(bytes.subspan(chunk * kChunkBytes - begin, chunk_end(chunk) - chunk * kChunkBytes));
    }
    return {};
}

Result<uint64_t> ValueHash::checksum() {
    if (devices_ != nullptr) MC_RETURN_IF_ERROR(hash_from_devices());
    if (table_.empty()) return only_ != 0 ? only_ : only_ = hash_chunk(0);
    for (uint64_t chunk = 0; chunk < table_.size(); ++chunk)
        if (table_[chunk] == 0) table_[chunk] = hash_chunk(chunk);
    return hash_table(table_);
}

}  // namespace mooncake::store
