// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/time.h"
#include "store/protocol/objects.h"
#include "store/protocol/segments.h"

/// What the master tells a client without being asked, in order, over one streamed call (docs/store.md, "The event stream"). From it a node
/// keeps the catalogue of what its segments hold, and every client forgets what it cached too long. Plain data, owning but for views.
namespace mooncake::store {

/// A writer may put bytes here from now on, until filled or dropped. In a first report: also values, filled right after.
struct RangePlanned {
    SegmentId segment;
    uint64_t offset = 0, length = 0;  // of the value
    uint64_t generation = 0;
    std::string tenant, key, group;
    ObjectDataType data_type = ObjectDataType::kUnknown;
    bool hard_pin = false;
    Duration soft_pin_left{0};
    ClientId writer;
};
/// The same with borrowed texts.
struct RangePlannedView {
    static RangePlannedView of(const RangePlanned& range);
    RangePlanned owned() const;

    SegmentId segment;
    uint64_t offset = 0, length = 0, generation = 0;
    std::string_view tenant, key, group;
    ObjectDataType data_type = ObjectDataType::kUnknown;
    bool hard_pin = false;
    Duration soft_pin_left{0};
    ClientId writer;
};
/// The write of this generation ended: its range on this segment holds the value.
struct RangeFilled {
    SegmentId segment;
    uint64_t generation = 0;
    uint64_t checksum = 0;
};
/// Nothing of this generation is on this segment any more; readers may still look there for `quarantine`.
struct RangeDropped {
    SegmentId segment;
    uint64_t generation = 0;
    Duration quarantine{0};
};
/// Whatever is remembered of these keys may be outdated.
struct KeyChanged {
    std::string tenant, key;
};

/// A copy or a move that this client shall carry out: it owns the source.
struct CopyOrder {
    TaskId task;
    std::string tenant, key;
    uint64_t generation = 0, length = 0, checksum = 0;
    ReplicaLocation source;
    std::vector<ReplicaLocation> targets;
};
/// What an order takes of an update, about.
inline size_t wire_bytes(const CopyOrder& order) {
    return 128 + order.tenant.size() + order.key.size() + order.targets.size() * sizeof(ReplicaLocation);
}

struct EventUpdate {
    /// Counts the updates to one client, also from one stream to the next; acknowledged where `acknowledge` is set.
    uint64_t sequence = 0;
    bool acknowledge = false;
    /// The catalogue starts from nothing: the first update of a stream.
    bool reset = false;
    /// With this update everything the master had at the start of the stream has been told.
    bool complete = false;
    std::vector<RangePlanned> planned;
    std::vector<RangeFilled> filled;
    std::vector<RangeDropped> dropped;
    std::vector<KeyChanged> changed;
    bool all_changed = false;  // too many to name
    std::vector<CopyOrder> orders;
    /// Nodes that do not hear what becomes of their memory, and some that know all of it again: whoever is told says so to the next master.
    /// The first update of a stream names all that are behind.
    std::vector<Behind> behind;
    std::vector<ClientId> caught_up;
    HistoryPoint now;  // with `reset`, and with `complete`: whoever has come here has heard everything up to this moment
};

/// An update as it is heard: what there is much of is borrowed, from the message, from `copy`, or from an update that lasts longer.
struct EventView {
    EventView() = default;
    EventView(const EventUpdate& update);  // implicit: it is the same
    EventUpdate owned() const;

    std::unique_ptr<uint64_t[]> copy;  // of a message that lay at an odd address

    uint64_t sequence = 0;
    bool acknowledge = false, reset = false, complete = false;
    std::vector<RangePlannedView> planned;
    std::vector<RangeFilled> filled;
    std::vector<RangeDropped> dropped;
    std::vector<KeyChanged> changed;
    bool all_changed = false;
    std::vector<CopyOrder> orders;
    std::vector<Behind> behind;
    std::vector<ClientId> caught_up;
    HistoryPoint now;
};

}  // namespace mooncake::store
