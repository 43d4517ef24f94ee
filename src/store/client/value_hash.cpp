// SPDX-License-Identifier: Apache-2.0
#include "store/client/value_hash.h"

#include <algorithm>
#include <cstring>

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
    partials_.reset();
    more_.clear();
    if (pieces.size() > 1) more_.reserve(pieces.size() - 1);
    uint64_t offset = 0;
    for (size_t i = 0; i < pieces.size(); ++i) {
        const uint64_t part = std::min(pieces[i].length, length - offset);
        if (engine != nullptr && !is_host(*engine, pieces[i].data, part)) devices_ = engine;
        if (i == 0) first_ = Part(this, pieces[i].data, offset);
        else more_.emplace_back(this, pieces[i].data, offset);
        offset += part;
    }
    if (devices_ != nullptr) partials_ = std::make_unique<PartialChunks>();
}

void ValueHash::Part::copy(std::byte* to, const std::byte* from, uint64_t length) noexcept {
    owner_->copy(offset_of(owner_->direction_ == Direction::kRead ? to : from), to, from, length);
}

void ValueHash::Part::passed(const std::byte* local, const std::byte* bytes, uint64_t length) noexcept {
    owner_->look(offset_of(local), bytes, length);
}

uint64_t ValueHash::chunk_end(uint64_t chunk) const noexcept { return std::min((chunk + 1) * kChunkBytes, length_); }

void ValueHash::forget(uint64_t offset, uint64_t length) noexcept {
    if (length == 0) return;
    const uint64_t end = offset + length;
    for (uint64_t chunk = offset / kChunkBytes; chunk * kChunkBytes < end; ++chunk) {
        const uint64_t begin = chunk * kChunkBytes;
        entry(chunk) = 0;
        if (partials_) partials_->forget(chunk, {std::max(offset, begin) - begin, std::min(end, begin + kChunkBytes) - begin});
    }
}

void ValueHash::copy(uint64_t offset, std::byte* to, const std::byte* from, uint64_t length) noexcept {
    while (length > 0) {
        const uint64_t chunk = offset / kChunkBytes, begin = chunk * kChunkBytes, end = chunk_end(chunk);
        const uint64_t now = std::min(length, end - offset);
        if (now == end - begin) {
            entry(chunk) = copy_and_hash(to, from, now);
        } else {
            std::memcpy(to, from, now);
            if (partials_) look_at_part(chunk, offset, direction_ == Direction::kRead ? to : from, now);
        }
        offset += now;
        to += now;
        from += now;
        length -= now;
    }
}

void ValueHash::look(uint64_t offset, const std::byte* at, uint64_t length) noexcept {
    // Of host memory chunks of which only a part passes here are left to checksum().
    while (length > 0) {
        const uint64_t chunk = offset / kChunkBytes, begin = chunk * kChunkBytes, end = chunk_end(chunk);
        const uint64_t now = std::min(length, end - offset);
        if (now == end - begin) entry(chunk) = hash_bytes({at, now});
        else if (partials_) look_at_part(chunk, offset, at, now);
        offset += now;
        at += now;
        length -= now;
    }
}

void ValueHash::look_at_part(uint64_t chunk, uint64_t offset, const std::byte* at, uint64_t length) noexcept {
    const uint64_t begin = chunk * kChunkBytes;
    if (const uint64_t hash = partials_->add(chunk, chunk_end(chunk) - begin, offset - begin, at, length); hash != 0) entry(chunk) = hash;
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

void ValueHash::gather(uint64_t from, uint64_t to, std::byte* into, PartsByKind& parts) const {
    const auto next = std::upper_bound(more_.begin(), more_.end(), from,
                                       [](uint64_t offset, const Part& part) { return offset < part.offset(); });
    for (auto i = static_cast<size_t>(next - more_.begin()); from < to; ++i) {
        const uint64_t within = from - (i == 0 ? first_ : more_[i - 1]).offset();
        const uint64_t length = std::min(to - from, pieces_[i].length - std::min(within, pieces_[i].length));
        if (length == 0) continue;
        const std::byte* const at = pieces_[i].data + within;
        parts[static_cast<size_t>(devices_->memory_kind(at, length))].push_back({.to = into, .from = at, .length = length});
        into += length;
        from += length;
    }
}

Result<> ValueHash::hash_gathered(std::span<const uint64_t> chunks, std::byte* buffer) {
    PartsByKind parts;
    for (size_t i = 0; i < chunks.size(); ++i) {
        const uint64_t begin = chunks[i] * kChunkBytes;
        std::byte* const at = buffer + i * kChunkBytes;
        for (const auto& [from, to] : partials_->take(chunks[i], chunk_end(chunks[i]) - begin, at))
            gather(begin + from, begin + to, at + from, parts);
    }
    for (size_t kind = 0; kind < parts.size(); ++kind)
        if (!parts[kind].empty())
            MC_RETURN_IF_ERROR(devices_->devices().copy(MemoryKind::kHost, static_cast<MemoryKind>(kind), parts[kind]));
    for (size_t i = 0; i < chunks.size(); ++i)
        entry(chunks[i]) = hash_bytes({buffer + i * kChunkBytes, chunk_end(chunks[i]) - chunks[i] * kChunkBytes});
    return {};
}

Result<> ValueHash::hash_from_devices() {
    constexpr size_t kChunksAtOnce = 16;
    std::unique_ptr<std::byte[]> buffer;
    std::vector<uint64_t> unknown;
    const uint64_t chunks = chunk_count(length_);
    for (uint64_t chunk = 0; chunk < chunks; ++chunk) {
        if (entry(chunk) == 0) unknown.push_back(chunk);
        if (unknown.empty() || (unknown.size() < kChunksAtOnce && chunk + 1 < chunks)) continue;
        if (!buffer) buffer.reset(new std::byte[kChunksAtOnce * kChunkBytes]);
        MC_RETURN_IF_ERROR(hash_gathered(unknown, buffer.get()));
        unknown.clear();
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
