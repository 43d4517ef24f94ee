// SPDX-License-Identifier: Apache-2.0
#include "engine/pairs.h"

namespace mooncake {

std::optional<KindPair> common_pair(std::span<const Slice> slices, const MemoryRegistry& ours, PeerMemory& theirs) {
    const bool devices_here = ours.has_device_memory();
    if (theirs.empty()) {
        if (!devices_here || slices.empty()) return KindPair{};
        const MemoryKind first = local_kind(slices.front());
        for (const Slice& slice : slices)
            if (local_kind(slice) != first) return std::nullopt;
        return KindPair{.local = first};
    }
    const PeerMemory::Reading remote(theirs);
    std::optional<KindPair> common;
    for (const Slice& slice : slices) {
        const auto run = remote.at(slice.remote, slice.length);
        const KindPair pair{.local = local_kind(slice), .remote = run.kind};
        if (!common) common = pair;
        if (pair != *common || (run.length < slice.length && slice.copier == nullptr)) return std::nullopt;
    }
    return common;
}

}  // namespace mooncake
