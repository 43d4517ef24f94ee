// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/incarnation.h"
#include "base/time.h"
#include "store/protocol/behind_clients.h"
#include "store/protocol/codes.h"
#include "store/protocol/ids.h"
#include "store/protocol/objects.h"

/// How nodes lend memory and stay known. Plain data, as in objects.h.
namespace mooncake::store {

enum class SegmentStatus : uint8_t { kUndefined, kOk, kDraining, kDrained, kGracefullyUnmounting, kUnmounting };

/// "OK", "DRAINING", ...
std::string_view segment_status_name(SegmentStatus status) noexcept;

/// What a segment is made of. A disk has no addresses: a replica's offset there is a name only (docs/tiers.md).
enum class SegmentKind : uint8_t { kMemory, kDisk };

struct SegmentSpec {
    SegmentId id;
    std::string name;   // host:port of the owner; several segments may share it
    uint64_t base = 0;  // address of its first byte in the owner
    uint64_t size = 0;
    std::string endpoint;  // what the transfer engine connects to
    std::string protocol;
    Incarnation incarnation{};  // the life of that engine which `base` belongs to; none: an older node did not tell, and nobody checks
    SegmentKind kind = SegmentKind::kMemory;
    std::string service{};  // host:port where its node answers what tiers.h says of nodes; empty: nowhere
};

struct MountRequest {
    ClientId client;
    SegmentSpec segment;
};

/// One value that lies in a segment, as its node knows it.
struct HeldObject {
    std::string_view tenant, key, group;
    uint64_t offset = 0, length = 0;
    uint64_t generation = 0, checksum = 0;
    ObjectDataType data_type = ObjectDataType::kUnknown;
    bool hard_pin = false;
    Duration soft_pin_left{0};
    ClientId writer;  // none: unknown
};
/// A write that was planned by an earlier master and has not ended. Lengths are those of values, here as in the event stream.
struct HeldWrite {
    uint64_t offset = 0, length = 0;
    ClientId writer;
};
/// A range whose value went, but whose readers' leases may still run; or one that was taken from its writer, whose bytes may still land.
struct HeldQuarantine {
    uint64_t offset = 0, length = 0;
    Duration left{0};
    ClientId writer{};  // none: readers
};
struct HeldSegment {
    SegmentSpec segment;
    std::span<const HeldObject> objects;
    std::span<const HeldWrite> writes;
    std::span<const HeldQuarantine> quarantined;
    /// The node followed the earlier master to its last event: what it does not name is free. Else everything free is in quarantine for a lease time.
    bool exact = false;
    /// Not the last part of this segment's report: no new ranges until that came. Objects are readable at once.
    bool more = false;
};
/// Also how a client makes itself known, with no segments. Whoever sends it has stopped all writes that earlier masters planned.
struct RemountRequest {
    ClientId client;
    /// The life of the master this is meant for, as its heartbeat said; 0: any. A report in parts must not end up half with one master and half
    /// with its successor, who would take the rest for free: another life adopts nothing and answers kInvalidVersion for every segment.
    uint64_t epoch = 0;
    std::span<const HeldSegment> segments;
    /// Who did not hear everything from earlier masters, as the last one told (EventUpdate::behind).
    std::span<const Behind> behind{};
    /// Until when the client itself has heard everything; none: it has never followed a master, and holds nothing.
    HistoryPoint heard{};
    /// Of this life of the master: everything up to this update; 0: none.
    uint64_t heard_update = 0;
    /// The life of the client's process. One that the master has met under the same id before is gone, with whatever it had not finished. None: not told, and nobody checks.
    Incarnation life{};
    /// Of a process that has taken the place of one that is gone: the last update of this life of the master that was written down, and 1 more. 0: it is not such a one.
    uint64_t remembered_update = 0;
};
struct RemountReply {
    struct Segment {
        StoreCode code = StoreCode::kOk;
        uint64_t adopted = 0;  // objects, or further replicas of them
        uint64_t stale = 0;    // a newer value is known
        uint64_t refused = 0;  // overlapping, out of bounds, contradictory
    };
    std::vector<Segment> segments;
    /// To a request without segments: updates (encoded) of this life that the sender has not heard, in order. What it holds is what it knew,
    /// and these.
    std::vector<std::vector<std::byte>> missed{};
    bool missed_lost = false;  // nobody knows any more what it was: it cannot say what it holds
};

struct UnmountRequest {
    ClientId client;
    SegmentId segment;
    Duration grace{0};  // 0: at once; else readable until then, without new writes
};

/// All mounted segments, for clients to find what replicas name.
struct SegmentsReply {
    struct Entry {
        uint32_t number = 0;
        SegmentSpec segment;
        SegmentStatus status = SegmentStatus::kOk;
        ClientId client;
        uint64_t used_bytes = 0;
    };
    std::vector<Entry> segments;
    uint64_t epoch = 0;
};

enum class HeartbeatStatus : uint8_t { kOk, kNeedRemount };
struct HeartbeatReply {
    HeartbeatStatus status = HeartbeatStatus::kOk;
    uint64_t epoch = 0;
    Duration client_ttl{0};
};

/// A client could not move data to or from these segments.
struct FailureReport {
    ClientId client;
    std::span<const SegmentId> segments;
};

}  // namespace mooncake::store
