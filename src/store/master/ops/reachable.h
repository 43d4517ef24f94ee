// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <span>

#include "store/master/state.h"

namespace mooncake::store {

inline bool contains(std::span<const uint32_t> segments, SegmentNumber segment) {
    return std::find(segments.begin(), segments.end(), segment) != segments.end();
}

/// Whether somebody who cannot reach these segments can read the object and all others of its group.
inline bool reachable(const MasterState& state, ObjectId id, std::span<const uint32_t> unreachable) {
    if (unreachable.empty()) return true;
    const ObjectId unit = state.unit(id);
    const std::span<const ObjectId> members = state.members(unit);
    return std::all_of(members.begin(), members.end(), [&](ObjectId member) {
        const ReplicaList& replicas = state.objects()[member].replicas;
        for (size_t i = 0; i < replicas.size(); ++i)
            if (!contains(unreachable, replicas[i].segment)) return true;
        return false;
    });
}

}  // namespace mooncake::store
