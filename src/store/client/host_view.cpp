// SPDX-License-Identifier: Apache-2.0
#include "store/client/host_view.h"

#include <algorithm>
#include <cstring>

namespace mooncake::store {

Result<> HostView::fetch(MemoryKind kind) {
    if (parts_.empty()) return {};
    if (kind != MemoryKind::kHost) MC_RETURN_IF_ERROR(engine_.devices().copy(MemoryKind::kHost, kind, parts_));
    else
        for (const CopyPart& part : parts_) std::memcpy(part.to, part.from, part.length);
    parts_.clear();
    return {};
}

Result<std::span<const std::byte>> HostView::look(std::span<const Piece> pieces, uint64_t begin, uint64_t end) {
    MC_CHECK(begin <= end && end - begin <= kBytesMax);
    if (!buffer_) buffer_.reset(new std::byte[kBytesMax]);
    parts_.clear();
    MemoryKind kind = MemoryKind::kHost;
    uint64_t at = 0;
    for (const Piece& piece : pieces) {
        const uint64_t from = std::max(begin, at), to = std::min(end, at + piece.length);
        if (from < to) {
            const std::byte* const bytes = piece.data + (from - at);
            const MemoryKind next = engine_.memory_kind(bytes, to - from);
            if (next != kind) MC_RETURN_IF_ERROR(fetch(kind));
            kind = next;
            parts_.push_back({.to = buffer_.get() + (from - begin), .from = bytes, .length = to - from});
        }
        at += piece.length;
        if (at >= end) break;
    }
    MC_RETURN_IF_ERROR(fetch(kind));
    return std::span<const std::byte>(buffer_.get(), end - begin);
}

}  // namespace mooncake::store
