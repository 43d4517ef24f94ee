// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <span>
#include <unordered_map>

#include "store/master/state.h"
#include "store/master/walk_counter.h"

namespace mooncake::store {

inline bool contains(std::span<const uint32_t> segments, SegmentNumber segment) {
    return std::find(segments.begin(), segments.end(), segment) != segments.end();
}

/// Whether somebody who cannot reach these segments can read an object and all others of its group. For one operation that changes no
/// replicas: looks at each group once, however many of its members are asked for. Borrows both.
class Reach {
public:
    Reach(const MasterState& state, std::span<const uint32_t> unreachable) : state_(state), unreachable_(unreachable) {}

    bool operator()(ObjectId id) {
        if (unreachable_.empty()) return true;
        const GroupId group = state_.objects()[id].group;
        if (group == 0) return one(id);
        const auto [known, fresh] = groups_.try_emplace(group, false);
        if (fresh) {
            const auto& members = state_.groups()[group].members;
            known->second = std::all_of(members.begin(), members.end(), [this](ObjectId member) { return one(member); });
        }
        return known->second;
    }

private:
    bool one(ObjectId id) const {
        ++steps_walked();
        const ReplicaList& replicas = state_.objects()[id].replicas;
        for (size_t i = 0; i < replicas.size(); ++i)
            if (!contains(unreachable_, replicas[i].segment)) return true;
        return false;
    }

    const MasterState& state_;
    const std::span<const uint32_t> unreachable_;
    std::unordered_map<GroupId, bool> groups_;
};

}  // namespace mooncake::store
