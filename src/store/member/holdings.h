// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>

#include "base/time.h"
#include "store/member/standing.h"
#include "store/protocol/events.h"
#include "store/protocol/segments.h"

namespace mooncake::store {

/// What a member of the pool lends, as far as its membership must know: told by the master what lies there, asked for it when another
/// master takes over. This one is of a member that lends nothing; a node's is its Catalogue. Thread-safe.
class Holdings {
public:
    virtual ~Holdings() = default;
    /// False: it is known already, and stays as it is.
    virtual bool add_segment(const SegmentSpec& /*segment*/) { return false; }
    virtual void remove_segment(const SegmentId& /*segment*/) {}
    virtual void apply(const EventView& /*update*/, Time /*now*/) {}
    /// The event stream broke. `orderly`: by its other end (so every event of it arrived), not by silence.
    virtual void stream_ended(bool /*orderly*/) {}
    /// How far its member has heard changed otherwise than by an update. `following`: an event stream is about to begin; else nothing new is known of the last one's end.
    virtual void stands(const Standing& /*standing*/) {}
    /// What is applied between these two was missed while no stream was followed: where it says something, what was known before is over.
    virtual void begin_missed() {}
    virtual void end_missed() {}
    /// Hands out, in parts of at most `entries_max` entries each, everything a new master must know; borrowed for the time of the call,
    /// during which no lock is held. Stops at the first false. Segments must not be removed nor updates applied meanwhile: a segment
    /// that goes is not reported to its end.
    virtual bool report(size_t /*entries_max*/, Time /*now*/, const std::function<bool(const HeldSegment&)>& /*part*/) const {
        return true;
    }
    virtual bool lends() const { return false; }  // whether there is a segment
};

}  // namespace mooncake::store
