// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/time.h"
#include "store/master/client_table.h"
#include "store/master/object.h"
#include "store/protocol/ids.h"
#include "store/protocol/objects.h"
#include "store/protocol/segments.h"
#include "store/protocol/tasks.h"

/// Everything that can happen to the state: plain data, complete in itself, in the order in which it must be applied. They name
/// records by number, which are the same wherever the same changes were applied from the same start.
namespace mooncake::store {

/// A text that is borrowed while its change is applied, and owned once the change is kept. A put is too frequent for a copy that only a log
/// needs.
class Text {
public:
    Text() = default;
    explicit Text(std::string_view borrowed) : borrowed_(borrowed) {}
    std::string_view get() const { return owned_.empty() ? borrowed_ : std::string_view(owned_); }
    void own() {
        owned_ = get();
        borrowed_ = {};
    }

private:
    std::string_view borrowed_;
    std::string owned_;
};

// lives -------------------------------------------------------------------------------------------------------------------

/// A master goes on from the changes of another. Values stay readable; nothing new goes to a node that has not met it, since that one
/// reports to a third master what it heard from the first.
struct Restarted {
    Time now{};
};

// clients -----------------------------------------------------------------------------------------------------------------

struct ClientSeen {
    ClientId client;
    Time expires{};
    bool attached = false;   // it told what it holds
    Incarnation life{};      // of its process; none: as before
    bool restarted = false;  // which has taken the place of an earlier one
};
/// It is as good as gone; its segments, to which nothing new goes from now on, are taken away one by one.
struct ClientLeaves {
    ClientId client;
    ClientEnd how = ClientEnd::kGoodbye;
    Time now{};
};
/// Drops its unfinished writes and copies; its segments have gone before.
struct ClientGone {
    ClientId client;
    ClientEnd how = ClientEnd::kGoodbye;
    Time now{};
};
/// It reports: all writes that were planned for it before, by us or by earlier masters, have stopped.
struct WriterQuiet {
    ClientId client;
    Time now{};
};
/// Its event stream broke, or it follows again. As long as it is not told what it holds, others are preferred for new values.
struct ClientFollows {
    ClientId client;
    bool follows = false;
    Time now{};
};
struct RequestClosed {
    ClientId client;
    uint64_t request_id = 0;
};

// segments ----------------------------------------------------------------------------------------------------------------

/// Nothing new goes there until it is opened. What was busy when the same memory went goes into quarantine again.
struct SegmentMounted {
    ClientId client;
    SegmentSpec segment;
    Time now{};
};
/// Its node has told all it holds. Ranges reported busy that are free now go into quarantine.
struct SegmentOpened {
    SegmentNumber segment = 0;
    Time closed_until{};
    Time now{};
};
/// Readers may still look there: as told by the node while the segment is not yet open.
struct RangeBusy {
    SegmentNumber segment = 0;
    uint64_t offset = 0, length = 0;
    Time until{};
    ClientId writer{};  // not readers but the bytes of a writer are feared, whose write an earlier master had taken from it
};
/// With all replicas in it, and the rest of the groups that lost a member.
struct SegmentRemoved {
    SegmentNumber segment = 0;
    bool may_return = false;  // its node did not say that it takes it back
    Time now{};
};
/// Its node has unmounted it: it must not be mounted again by a message of that client's that comes late.
struct SegmentUnwanted {
    SegmentId segment;
    ClientId client;
    bool may_return = false;  // with another life of its node: a disk
};
struct SegmentStatusSet {
    SegmentNumber segment = 0;
    SegmentStatus status = SegmentStatus::kOk;
    Time until{};
    Time now{};
};
struct SegmentSuspected {
    SegmentNumber segment = 0;
    Duration duration{0};
    Time now{};
};
/// A value, or one more replica of a known one, that a node reported.
struct ValueAdopted {
    SegmentNumber segment = 0;
    std::string tenant, key, group;
    uint64_t offset = 0, length = 0, generation = 0, checksum = 0;
    ObjectDataType data_type = ObjectDataType::kUnknown;
    bool hard_pin = false;
    Time soft_pin_end{};
    ClientId writer;
    Time lease_end{};
    Time now{};
};
/// What these told of values of earlier lives was outdated: it goes, with its copies, unless others told the same. Their segments have gone before.
struct ReportsWithdrawn {
    std::vector<ClientId> clients;
    Time now{};
};
/// A node reported a value of that generation, which must be credible (Generations).
struct GenerationSeen {
    uint64_t generation = 0;
};
/// A member told of a master before us: nodes may hold values of its time.
struct EarlierLifeSeen {};
/// A range that a node reported as being written under an earlier master, which may have told readers of it by the end of its life.
struct RangeReserved {
    SegmentNumber segment = 0;
    uint64_t offset = 0, length = 0;
    ClientId writer;
    Time until{};
    Time leased_until{};  // also if the writer has stopped
};

// objects -----------------------------------------------------------------------------------------------------------------

struct WriteStarted {
    ObjectId object = 0;    // 0: a new one, with this tenant, key and group
    bool regroups = false;  // one that is there takes this group, when the write has ended
    TenantNumber tenant = 0;
    Text key, group;
    ClientId client;
    uint64_t request_id = 0;
    uint64_t generation = 0;
    uint64_t length = 0;
    std::vector<ReplicaLocation> replicas;
    Duration soft_pin_ttl{0};
    SoftPinAction soft_pin = SoftPinAction::kPreserve;
    ObjectDataType data_type = ObjectDataType::kUnknown;
    bool hard_pin = false;
    Time now{};

    void own() {
        key.own();
        group.own();
    }
};
struct WriteCommitted {
    WriteId write = 0;
    uint64_t checksum = 0;
    bool replaced_rests = false;  // the memory of an older value on other nodes is in quarantine until ReplacedTold, if not longer
    Time now{};
};
/// The nodes of the value that has replaced this one can know of that, whatever becomes of us: its own may be told to give it up.
struct ReplacedTold {
    SegmentNumber segment = 0;
    uint64_t generation = 0;
    Time now{};
};
struct WriteDropped {
    WriteId write = 0;
    Time quarantine_until{};  // of its ranges; not above now: free at once
    Time now{};
    std::vector<SegmentNumber> in_doubt{};  // what it has there is in quarantine longer: until put_release_timeout is over
};
/// The writer of a write that was taken from it has stopped, but for segments in doubt: what is in quarantine for fear of its bytes is free.
struct WriterStopped {
    ClientId client;
    uint64_t generation = 0;
    std::vector<SegmentNumber> in_doubt{};
    Time now{};
};
struct LeasesGranted {
    Time until{};        // their bytes stay where they are
    Time soft_leased{};  // they are kept, if at all possible
    std::vector<ObjectId> objects;
};
struct SoftLeasesGranted {
    Time until{};
    std::vector<ObjectId> objects;
};
enum class RemovalCause : uint8_t { kAsked, kEvicted };
struct ObjectsRemoved {
    std::vector<ObjectId> objects;
    RemovalCause cause = RemovalCause::kAsked;
    Time now{};
};
/// Somebody wants this key gone, which we do not know: whoever reports it later is late.
struct TombstoneLeft {
    std::string tenant, key;
};
/// Somebody wants many keys gone, of which this is the beginning: what is written from now on is none of them, whenever they go.
struct RemovalBegun {};
/// Values below this rank are gone, of all keys of a tenant, known or not, or (nothing) of all.
struct TombstoneOfAll {
    std::optional<std::string> tenant;
    uint64_t rank = 0;
};
/// The same for those that match: what is known of them is removed by changes of its own. (Not plain data: a log that is written down needs the text.)
struct TombstoneOfMatching {
    std::optional<std::string> tenant;
    std::function<bool(std::string_view key)> matches;
    size_t cost = 1;  // of a match
    uint64_t rank = 0;
    Time now{};
};
/// Not the last one.
struct ReplicaRemoved {
    ObjectId object = 0;
    SegmentNumber segment = 0;
    JobId job{};  // the drain that had it to move, if any
    Time now{};
};

// tenants, copies, drains -------------------------------------------------------------------------------------------------

struct QuotaSet {
    std::string tenant;
    std::optional<uint64_t> bytes;  // nothing: no policy any more
};
struct TaskCreated {
    TaskId task;
    TaskType type = TaskType::kCopy;
    std::string tenant, key;
    SegmentNumber source = 0;
    std::vector<SegmentNumber> destination;
    JobId job;
    Time now{};
};
/// It could not begin: to be tried again.
struct TaskDelayed {
    TaskId task;
    Time until{};
};
/// It never began.
struct TaskFinished {
    TaskId task;
    StoreCode code = StoreCode::kOk;
    std::string message;
    Time now{};
};
struct CopyStarted {
    TaskId task;
    ObjectId object = 0;
    SegmentNumber source = 0;
    std::vector<ReplicaLocation> targets;
    Time now{};
};
/// Of a move, the source goes. If it failed, the target ranges are in quarantine until then.
struct CopyEnded {
    CopyId copy = 0;
    StoreCode code = StoreCode::kOk;
    std::string message;
    Time quarantine_until{};
    Time now{};
    std::vector<SegmentNumber> in_doubt{};  // as WriteDropped::in_doubt
};
/// Who carried out a copy that had been taken from it has stopped, but for segments in doubt: its other targets need not be in quarantine
/// any more.
struct CopierStopped {
    TaskId task;
    ClientId client;
    Time now{};
    std::vector<SegmentNumber> in_doubt{};
};
struct DrainStarted {
    JobId job;
    std::vector<std::string> names;  // as asked for
    std::vector<SegmentNumber> segments, destination;
    std::vector<std::string> segment_names;  // of each of `segments`
    uint32_t concurrency = 0;
    Time now{};
};
/// The value of that generation could not begin to move, for this reason: to be tried again not before, or when a segment opens.
struct DrainTried {
    JobId job;
    uint64_t generation = 0;
    StoreCode code = StoreCode::kOk;
    Time not_before{};
    bool before_its_turn = false;  // since a segment had opened: this try does not count
    Time now{};
};
/// How far its pass has come.
struct DrainScanned {
    JobId job;
    size_t position = 0;
    RangeAllocator::Block next_block = 1;
    uint64_t seen = 0, hopeless = 0, waiting = 0;
    uint64_t blocked = 0;  // waited in the whole of the last pass
};
struct DrainFinished {
    JobId job;
    DrainStatus status = DrainStatus::kSucceeded;
    std::string message;
    Time now{};
};

// tiers -------------------------------------------------------------------------------------------------------------------

/// Their values leave memory: they lie on disks as well.
struct MemoryReleased {
    std::vector<ObjectId> objects;
    Time now{};
};
/// The entry was looked at ahead of its eviction: what of it is on no disk is queued.
struct LookedAhead {
    ObjectId object = 0;
};
/// What was set aside because no disk has it yet need not be any more.
struct BroughtBack {
    ObjectId object = 0;
};
/// The first that waits for being offloaded or promoted by that node does not any more.
struct TierTaken {
    ClientNumber client = 0;
    bool promotion = false;
};
/// A copy between tiers of one node, which is ended by CopyEnded.
struct TierCopyStarted {
    TaskId task;
    ObjectId object = 0;
    SegmentNumber source = 0;
    ReplicaLocation target;
    Time now{};
};
/// The node wants that many bytes under way between its tiers.
struct TierWindowSet {
    ClientNumber client = 0;
    uint64_t bytes = 0;
};
/// How fast values come is looked at now and then.
struct TiersLooked {
    Time now{};
};
/// These values are not on that disk any more: its node has decided so.
struct DiskReplicasGone {
    SegmentNumber segment = 0;
    std::vector<ObjectId> objects;
    std::vector<uint64_t> unknown;  // generations that we do not know, and may yet be told of by a report that is older than this
    Time now{};
};

// time --------------------------------------------------------------------------------------------------------------------

/// The coldest entry may not be evicted before.
struct SetAside {
    ObjectId object = 0;
    Shelf shelf = Shelf::kNone;
    Time until{};
};
/// What was waiting for this moment happens: ranges come out of quarantine (so many at a time), entries back into the order, segments into
/// the view.
struct ClockAdvanced {
    Time now{};
};

using Change = std::variant<
    Restarted, ClientSeen, ClientLeaves, ClientGone, WriterQuiet, ClientFollows, RequestClosed, SegmentMounted, SegmentOpened, RangeBusy,
    SegmentRemoved, SegmentUnwanted, SegmentStatusSet, SegmentSuspected, ValueAdopted, ReportsWithdrawn, GenerationSeen, EarlierLifeSeen,
    RangeReserved, WriteStarted, WriteCommitted, ReplacedTold, WriteDropped, WriterStopped, LeasesGranted, SoftLeasesGranted,
    ObjectsRemoved, TombstoneLeft, RemovalBegun, TombstoneOfAll, TombstoneOfMatching, ReplicaRemoved, QuotaSet, TaskCreated, TaskDelayed,
    TaskFinished, CopyStarted, CopyEnded, CopierStopped, DrainStarted, DrainTried, DrainScanned, DrainFinished, MemoryReleased, LookedAhead,
    BroughtBack, TierTaken, TierCopyStarted, TierWindowSet, TiersLooked, DiskReplicasGone, SetAside, ClockAdvanced>;

}  // namespace mooncake::store
