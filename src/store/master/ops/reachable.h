// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <unordered_map>

#include "store/master/state.h"
#include "store/master/walk_counter.h"

namespace mooncake::store {

inline bool contains(std::span<const uint32_t> segments, SegmentNumber segment) {
    return std::find(segments.begin(), segments.end(), segment) != segments.end();
}

/// Whether somebody can read an object and all others of its group. For one operation that changes no replicas of theirs: looks at each
/// group once, however many of its members are asked for. Borrows both.
class Reach {
public:
    /// For who cannot reach these segments. What else is wrong with the others it will find out.
    Reach(const MasterState& state, std::span<const uint32_t> unreachable) : state_(state), unreachable_(unreachable) {}
    /// The same, but what does not seem well to us does not count either: for who would take our answer for it. Its own memory it reaches.
    Reach(const MasterState& state, std::span<const uint32_t> unreachable, ClientNumber asker, Time now)
        : state_(state), unreachable_(unreachable), well_at_(now), asker_(asker) {}

    bool operator()(ObjectId id) {
        if (!well_at_ && unreachable_.empty()) return true;
        const GroupId group = state_.objects()[id].group;
        if (group == 0) return one(id);
        if (!doubtful_) doubtful_ = look_for_doubt();
        if (!*doubtful_) return true;
        const auto [known, fresh] = groups_.try_emplace(group, false);
        if (fresh) {
            const auto& members = state_.groups()[group].members;
            known->second = std::all_of(members.begin(), members.end(), [this](ObjectId member) {
                return !state_.objects()[member].has_value() || one(member);  // one that is yet to come is not lost
            });
        }
        return known->second;
    }

private:
    /// There may be more members than segments.
    bool look_for_doubt() const {
        const auto numbers = state_.segments().numbers();
        return !unreachable_.empty() || std::any_of(numbers.begin(), numbers.end(), [this](SegmentNumber one) { return !reaches(one); });
    }
    bool one(ObjectId id) const {
        ++steps_walked();
        const ReplicaList& replicas = state_.objects()[id].replicas;
        for (size_t i = 0; i < replicas.size(); ++i)
            if (reaches(replicas[i].segment)) return true;
        return false;
    }
    bool reaches(SegmentNumber segment) const {
        if (contains(unreachable_, segment)) return false;
        // What its owner is telling us just now can be read.
        return !well_at_ || state_.segments().is_well(segment, *well_at_) || state_.segments()[segment].client == asker_;
    }

    const MasterState& state_;
    const std::span<const uint32_t> unreachable_;
    const std::optional<Time> well_at_;
    const ClientNumber asker_ = 0;
    std::optional<bool> doubtful_;
    std::unordered_map<GroupId, bool> groups_;
};

}  // namespace mooncake::store
