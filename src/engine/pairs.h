// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <utility>

#include "engine/memory_registry.h"
#include "engine/peer_memory.h"
#include "transport/transport.h"

// Which kinds of memory the bytes of a transfer lie in, at both ends. Pure.
namespace mooncake {

inline MemoryKind local_kind(const Slice& slice) noexcept { return slice.region == nullptr ? MemoryKind::kHost : slice.region->kind; }

/// The pair that all of them are of; nothing: there are several. Where neither side has memory of devices this is two loads.
std::optional<KindPair> common_pair(std::span<const Slice> slices, const MemoryRegistry& ours, PeerMemory& theirs);

/// Gives take(pair, part) every part of a slice that is of one pair. A slice whose bytes somebody looks at stays whole: it is of the kind
/// it begins with.
template <typename Take>
void split_by_pair(Slice slice, const PeerMemory::Reading& theirs, Take&& take) {
    const MemoryKind local = local_kind(slice);
    while (slice.length > 0) {
        auto run = theirs.at(slice.remote, slice.length);
        if (slice.copier != nullptr) run.length = slice.length;
        Slice part = slice;
        part.length = run.length;
        take(KindPair{.local = local, .remote = run.kind}, part);
        slice.local += run.length;
        slice.remote += run.length;
        slice.length -= run.length;
    }
}

}  // namespace mooncake
