// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <functional>

#include "store/master/state.h"
#include "store/protocol/events.h"

/// What a node is told of its segments, as events (protocol/events.h), made from the state at the moment an observer hears of
/// it, or in bounded parts at the start of an event stream. They only look; names and keys are copied.
namespace mooncake::store {

RangePlanned event_of_write(const MasterState& state, SegmentNumber segment, WriteId write);
RangePlanned event_of_copy(const MasterState& state, SegmentNumber segment, CopyId copy, Time now);
RangePlanned event_of_value(const MasterState& state, SegmentNumber segment, ObjectId object, Time now);
CopyOrder order_of(const MasterState& state, CopyId copy);

/// Which of them are yet to be told.
struct OrderCursor {
    bool begun = false;
    std::deque<TaskId> left;
    uint64_t last_tier_task = 0;
};
/// The orders that this client has been given and has not ended, for the start of its event stream: about so many bytes of them, from the cursor on. Returns
/// false when there are no more.
bool tell_orders(const MasterState& state, const ClientId& client, OrderCursor& cursor, size_t bytes_max, EventUpdate& to);

/// A used range of a segment. `number` is an ObjectId, WriteId, CopyId or QuarantineId, as `kind` says.
struct UsedRange {
    OwnerKind kind = OwnerKind::kObject;
    uint32_t number = 0;
    uint64_t offset = 0, length = 0;  // of the value
    uint64_t generation = 0;
};

/// Where to go on; default: at the beginning. It stays good while ranges come and go: what is used during the whole enumeration is visited
/// once, what came or went meanwhile at most once.
struct RangeCursor {
    RangeAllocator::Block next = 1;
};

/// Visits used ranges from the cursor on, in no useful order, looking at no more than `most` blocks. Returns false when there are no more,
/// also where the segment has gone.
bool for_each_range(const MasterState& state, SegmentNumber segment, RangeCursor& cursor, size_t most,
                    const std::function<void(const UsedRange&)>& visit);

/// The same as events: values as planned and filled, writes and copies as planned, what is in quarantine as planned and dropped.
struct PartLimits {
    size_t blocks = 0;  // looked at, at most
    size_t bytes = 0;   // told, about: no more begins beyond them
};
bool tell_ranges(const MasterState& state, SegmentNumber segment, RangeCursor& cursor, PartLimits limits, Time now, EventUpdate& to);

}  // namespace mooncake::store
