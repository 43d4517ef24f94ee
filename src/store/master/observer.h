// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/time.h"
#include "store/master/object.h"

namespace mooncake::store {

class MasterState;

/// Told by MasterState::apply() what happens to ranges and values, in order and at the moment it happens, so that nodes and caches
/// can be told before anybody is answered. Looks at the state, never alters it. What the core knows and this interface does not
/// tell (leases, policy) is nobody else's business.
class StateObserver {
public:
    virtual ~StateObserver() = default;

    /// A write got a range on this segment; the write and its object are in the state.
    virtual void range_planned(const MasterState& state, SegmentNumber segment, WriteId write) = 0;
    /// A copy in progress got a range on this segment.
    virtual void range_planned_for_copy(const MasterState& state, SegmentNumber segment, CopyId copy) = 0;
    virtual void range_filled(const MasterState& state, SegmentNumber segment, uint64_t generation, uint64_t checksum) = 0;
    /// Not called for what goes with its segment. `rests`: another value has replaced it, and its memory has no other use until somebody applies
    /// ReplacedTold.
    virtual void range_dropped(const MasterState& state, SegmentNumber segment, uint64_t generation, Duration quarantine, bool rests) = 0;
    /// The object, still in the state, is about to lose or to change its value while somebody may hold a lease of either kind on it.
    virtual void value_outdated(const MasterState& state, ObjectId object) = 0;
    /// A value was removed or replaced, or is not to come back: nodes that the state does not know may hold an older one.
    virtual void tombstone_left(const MasterState& /*state*/) {}
    /// A copy or move is to be carried out by the owner of its source.
    virtual void copy_ordered(const MasterState& state, CopyId copy) = 0;
    /// Whether somebody will apply ReplacedTold for each range that rests; otherwise none does.
    virtual bool tells_of_replaced() const noexcept { return false; }
    /// The segment's owner is about to lose it.
    virtual void segment_removed(const MasterState& state, SegmentNumber segment) = 0;
};

}  // namespace mooncake::store
