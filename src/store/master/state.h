// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <queue>
#include <span>
#include <string_view>
#include <vector>

#include "base/time.h"
#include "store/allocation/slab.h"
#include "store/master/absent_nodes.h"
#include "store/master/change.h"
#include "store/master/client_table.h"
#include "store/master/generations.h"
#include "store/master/group_table.h"
#include "store/master/hold_ledger.h"
#include "store/master/object_table.h"
#include "store/master/observer.h"
#include "store/master/options.h"
#include "store/master/pin_counter.h"
#include "store/master/quarantine.h"
#include "store/master/segment_table.h"
#include "store/master/task_table.h"
#include "store/master/tellers.h"
#include "store/master/tenant_table.h"
#include "store/master/tier_table.h"
#include "store/master/tombstones.h"
#include "store/master/unwanted_segments.h"
#include "store/protocol/stored_form.h"

namespace mooncake::store {

/// Counted since the start, for people to look at: nothing is decided by them.
struct StateTotals {
    uint64_t evicted_objects = 0, evicted_bytes = 0;
    uint64_t discarded_writes = 0;  // their writers were not asked
    uint64_t expired_writes = 0;    // after put_release_timeout
    struct Copies {
        uint64_t started = 0, ended = 0, revoked = 0;
    };
    Copies copies, moves;
};

/// Why a range that is of no use any more must not be used again at once, other than for its readers.
struct Feared {
    ClientNumber writer = 0;    // whose bytes may still land
    bool until_report = false;  // not after it has reported to us
    bool write = false;         // those of a put or upsert
    uint64_t copy = 0;          // those of a copy, for this task
};

/// Everything the master knows. Deterministic: no I/O, no clock, no threads; equal after equal changes. Only apply() alters it; a
/// change that was decided on this state can always be applied to it. Not thread-safe.
class MasterState {
public:
    /// The observer, if any, must outlive it.
    explicit MasterState(const MasterOptions& options, StateObserver* observer = nullptr);
    MasterState(const MasterState&) = delete;
    MasterState& operator=(const MasterState&) = delete;

    void apply(const Change& change);
    void apply(const Restarted& change);
    void apply(const ClientSeen& change);
    void apply(const ClientLeaves& change);
    void apply(const ClientGone& change);
    void apply(const WriterQuiet& change);
    void apply(const ClientFollows& change);
    void apply(const RequestClosed& change);
    void apply(const SegmentMounted& change);
    void apply(const SegmentOpened& change);
    void apply(const RangeBusy& change);
    void apply(const SegmentRemoved& change);
    void apply(const SegmentUnwanted& change);
    void apply(const SegmentStatusSet& change);
    void apply(const SegmentSuspected& change);
    void apply(const ValueAdopted& change);
    void apply(const RangeReserved& change);
    void apply(const ReportsWithdrawn& change);
    void apply(const GenerationSeen& change);
    void apply(const EarlierLifeSeen&) { absent_.hear_of_earlier_life(); }
    void apply(const WriteStarted& change);
    void apply(const WriteCommitted& change);
    void apply(const ReplacedTold& change);
    void apply(const WriteDropped& change);
    void apply(const WriterStopped& change);
    void apply(const LeasesGranted& change);
    void apply(const SoftLeasesGranted& change);
    void apply(const ObjectsRemoved& change);
    void apply(const TombstoneLeft& change);
    void apply(const RemovalBegun& change);
    void apply(const TombstoneOfAll& change);
    void apply(const TombstoneOfMatching& change);
    void apply(const ReplicaRemoved& change);
    void apply(const QuotaSet& change);
    void apply(const TaskCreated& change);
    void apply(const TaskDelayed& change);
    void apply(const TaskFinished& change);
    void apply(const CopyStarted& change);
    void apply(const CopyEnded& change);
    void apply(const CopierStopped& change);
    void apply(const DrainStarted& change);
    void apply(const DrainTried& change);
    void apply(const DrainScanned& change);
    void apply(const DrainFinished& change);
    void apply(const MemoryReleased& change);
    void apply(const LookedAhead& change);
    void apply(const BroughtBack& change);
    void apply(const TierTaken& change);
    void apply(const TierCopyStarted& change);
    void apply(const TierWindowSet& change);
    void apply(const TiersLooked& change);
    void apply(const DiskReplicasGone& change);
    void apply(const SetAside& change);
    void apply(const ClockAdvanced& change);

    const MasterOptions& options() const noexcept { return options_; }
    const ClientTable& clients() const noexcept { return clients_; }
    const SegmentTable& segments() const noexcept { return segments_; }
    const TenantTable& tenants() const noexcept { return tenants_; }
    const GroupTable& groups() const noexcept { return groups_; }
    const ObjectTable& objects() const noexcept { return objects_; }
    const Quarantine& quarantine() const noexcept { return quarantine_; }
    const Tombstones& tombstones() const noexcept { return tombstones_; }
    const AbsentNodes& absent() const noexcept { return absent_; }
    const Tellers& tellers() const noexcept { return tellers_; }
    const UnwantedSegments& unwanted() const noexcept { return unwanted_; }
    const Write& write(WriteId id) const { return writes_[id]; }
    const Copy& copy(CopyId id) const { return copies_[id]; }
    const TaskTable& tasks() const noexcept { return tasks_; }
    const std::deque<Drain>& drains() const noexcept { return drains_; }
    const TierTable& tiers() const noexcept { return tiers_; }
    TaskId next_task() const { return {options_.first_generation, last_task_ + 1}; }
    JobId next_job() const { return {options_.first_generation, last_job_ + 1}; }
    /// A drain that runs has moved it or one of its group, or has yet to: to evict it would undo what the drain is for.
    bool kept_by_drain(ObjectId unit) const;
    // tiers
    TaskId next_tier_task() const { return {options_.first_generation, kTierTaskBit | (tiers_.last_task + 1)}; }
    /// The copy between tiers of that id that is under way; 0: none.
    CopyId find_tier_copy(const TaskId& task) const;
    /// Somebody asked for a copy or move of it that is under way. What is copied between tiers may be removed, replaced and evicted all the same.
    bool has_task(const Object& object) const { return object.copy != 0 && !copies_[object.copy].of_tiers(); }
    /// How many of them lie in memory.
    size_t memory_replicas(const ReplicaList& replicas) const {
        return segments_.disks() == 0 ? replicas.size() : count_in_memory(replicas);
    }
    /// Whether values are copied to disks: it is asked for, and there are some.
    bool offloads() const noexcept { return segments_.disks() != 0 && options_.offloads(); }
    /// Whether what of the unit lies in memory lies on disks as well: it can leave memory without being lost.
    bool is_clean(ObjectId unit) const;
    /// Whether it is to wait for a disk before it is evicted.
    bool waits_for_disk(ObjectId unit) const;
    /// A disk of that client's that a value of that length can go to, for all that was decided; 0: none. Whether it works is another question.
    SegmentNumber disk_for(ClientNumber client, uint64_t length) const;
    /// Values that are offloaded ahead of need, and others that are as cold: bytes.
    uint64_t cold_bytes() const;
    /// Whether a value may be brought back to memory.
    bool may_promote() const;
    /// When disks will have taken in that much more of what waits for them, from now; Duration::max(): nothing waits.
    Duration disk_wait(uint64_t bytes) const;
    size_t write_count() const noexcept { return writes_.size(); }
    WriteId oldest_write() const noexcept { return writes_by_age_.first(); }
    const StateTotals& totals() const noexcept { return totals_; }
    /// Keys that have a value.
    size_t values() const noexcept { return values_; }

    /// The tenant of that name, or the default one where tenants are off; 0: unknown.
    TenantNumber tenant(std::string_view name) const;
    /// The name of the tenant that is meant by this one.
    std::string_view tenant_name(std::string_view name) const { return options_.tenants ? name : TenantTable::kDefaultName; }
    /// What a tombstone of that key has, whether its tenant (by the hash of its name) is known or not.
    uint64_t tombstone_hash(uint64_t tenant, std::string_view key) const { return objects_.hash(0, key) ^ tenant; }
    /// The object that stands for this one in the eviction order: itself, or the first of its group.
    ObjectId unit(ObjectId id) const;
    /// The group of the unit, or just the object.
    std::span<const ObjectId> members(const ObjectId& unit) const;
    /// When the last lease, soft lease or soft pin on the unit or another of its group is over; if that is past, any earlier time.
    Time lease_end(ObjectId unit, Time now) const { return latest_hold(unit, &Group::leased, &Object::lease_end, now); }
    Time soft_lease_end(ObjectId unit, Time now) const { return latest_hold(unit, &Group::soft_leased, &Object::soft_lease_end, now); }
    Time soft_pin_end(ObjectId unit, Time now) const { return latest_hold(unit, &Group::soft_pinned, &Object::soft_pin_end, now); }
    /// Of the values of the unit, rounded, each counted once.
    uint64_t bytes_of(ObjectId unit) const;
    /// Has a value, and so have all others of its group.
    bool readable(const Object& object) const { return object.has_value() && (object.group == 0 || groups_[object.group].writing == 0); }
    /// See StateObserver::tells_of_replaced().
    bool replaced_rests() const noexcept { return observer_ != nullptr && observer_->tells_of_replaced(); }
    /// What a value of this length takes of a segment.
    uint64_t rounded(uint64_t length) const { return (stored_bytes(length) + options_.alignment - 1) & ~(options_.alignment - 1); }
    /// The length of a value that takes that much, a multiple of the alignment.
    uint64_t length_of(uint64_t bytes) const;
    uint64_t next_generation() const noexcept { return generations_.next(); }
    const Generations& generations() const noexcept { return generations_; }
    /// How long a value may be leased softly now: the full time while half of the pool is free; then the less the more is leased softly already, so that
    /// what is held never crowds out what is used.
    Duration soft_lease_time(Time now) const;
    /// How long its place may be leased now: the less the more is leased already, since leased memory cannot be used again even where its
    /// value was removed by force.
    Duration lease_time(Time now) const;
    /// Whether ClockAdvanced{now} would do anything.
    bool due(Time now) const { return now >= next_event(); }
    Time next_event() const;
    /// Values whose soft pin has not ended.
    uint64_t soft_pinned(Time now) const { return soft_pins_.count(now); }
    bool any_soft_pinned(Time now) const { return soft_pins_.any(now); }
    /// When the first entry that was set aside comes back; Time::max(): none.
    Time next_return() const { return returns_.empty() ? Time::max() : returns_.top().at; }

private:
    struct Return {
        Time at{};
        ObjectId object = 0;
        uint64_t generation = 0;
        friend bool operator>(const Return& a, const Return& b) { return a.at > b.at; }
    };
    /// Memory of a client that was unmounted while something could still reach it. It may come back with another client of its engine.
    struct Departed {
        ClientId client;
        Incarnation engine;  // none: not known
        SegmentId segment;
        uint64_t offset = 0;  // there
        uint64_t address = 0, bytes = 0;
        Time until{};
        ClientId writer;  // of an unfinished write; none: readers only
    };

    Time latest_hold(ObjectId unit, GroupHold Group::*of_group, Time Object::*of_object, Time now) const;
    ReplicaList take_ranges(const std::vector<ReplicaLocation>& where, uint64_t length, uint64_t owner);
    void give_ranges(const ReplicaList& replicas, uint64_t owner);
    /// A range of that generation is of no use any more: it is free now, or goes into quarantine; its node is told.
    void drop_range(const Replica& replica, uint64_t length, uint64_t generation, Time until, Time now, Feared feared = {});
    /// The same, of a value that another one replaces elsewhere: not before ReplacedTold.
    void rest_range(const Replica& replica, uint64_t length, uint64_t generation, Time until, Time now);
    void end_rest(QuarantineId id, Time now);
    void put_in_quarantine(Quarantine::Quarantined what);
    /// The writer, whom it was feared for, may be forgotten with it.
    void end_quarantine(QuarantineId id);
    /// The writer is known to be quiet from some time on.
    void end_quarantine_of(ClientNumber writer, Time quiet_from, Time now, bool reported_only);
    /// Whatever is free in [offset, offset + bytes) goes into quarantine.
    void quarantine_free_parts(SegmentNumber segment, const BusyMemory& busy);
    void meet_departed(SegmentNumber segment, Time now);
    void note_departed(SegmentNumber segment, RangeAllocator::Block block, Time now);
    /// `successor`: of its value, which is told first; those that lie on other nodes rest meanwhile.
    void drop_ranges_of(const Object& object, Time now, const ReplicaList* successor = nullptr);
    /// Whether one of these is lent by the client that lends this segment.
    bool same_node(const ReplicaList& replicas, SegmentNumber segment) const;
    void lease(Object& object, Time until);
    void lease_softly(Object& object, Time until);
    Duration rationed(const HoldLedger& ledger, Duration shortest, Time now) const;
    void finish_task(TaskNumber number, StoreCode code, std::string message, uint64_t bytes, Time now);
    void cancel_copy(CopyId id, StoreCode code, std::string message, Time quarantine_until, Time now,
                     std::span<const SegmentNumber> in_doubt = {});
    /// Not the last one.
    void drop_replica(Object& object, SegmentNumber segment, Time now);
    size_t count_in_memory(const ReplicaList& replicas) const;
    /// An object's value lies elsewhere now.
    void set_tiers(Object& object, bool in_memory, bool on_disk) {
        if (object.group != 0 || object.on_disk || on_disk) return set_tiers_of_counted(object, in_memory, on_disk);
        object.in_memory = in_memory;
    }
    void set_tiers_of_counted(Object& object, bool in_memory, bool on_disk);
    bool disk_awaits(const Object& object) const;
    void queue_offload(ObjectId id);
    void queue_offload_of(ObjectId unit);
    void note_disk_read(ObjectId id);
    /// Of a copy between tiers that is of no use any more, if there is one.
    void cancel_tier_copy(Object& object, Time now);
    void end_tier_copy(const Copy& copy, uint64_t length, StoreCode code, Time now);
    void add_disk(SegmentNumber segment);
    void remove_disk(SegmentNumber segment, ClientNumber client);
    Drain& drain_of(const JobId& id);
    DrainTries& count_try(Drain& drain, uint64_t generation, StoreCode code);
    /// The drain has nothing to do with this value any more.
    void moved(const JobId& job, Object& object);
    void charge(TenantNumber tenant, uint64_t length, size_t replicas);
    void refund(TenantNumber tenant, uint64_t length, size_t replicas);
    void join_group(ObjectId id, std::string_view name);
    void leave_group(ObjectId id);
    /// Of an object that has its value; nobody has a lease on it.
    void change_group(ObjectId id, std::string_view name);
    void set_writer(Object& object, ClientNumber writer);
    void soft_pin(Object& object, Time until);
    /// Its value goes: nobody holds it any more.
    void forget_leases(Object& object);
    /// A reader is told of memory that nobody was told of before, and may read until then: earlier leases hold it, too.
    void tell_of_memory(Object& object, Time until);
    void set_length(Object& object, uint64_t length);
    /// Takes the write out of the lists it is in.
    void forget_write(WriteId id);
    uint64_t tombstone_hash(const Object& object) const { return tombstone_hash(tenants_[object.tenant].name_hash, object.key()); }
    void leave_tombstone(uint64_t key_hash, uint64_t rank);
    void value_arrived(ObjectId id);
    /// Its value is about to go although nobody asked for it.
    void note_lost_value(const Object& object);
    /// The value goes, its ranges are in quarantine as long as they are leased; the object goes too unless it is being written.
    void drop_value(ObjectId id, Time now);
    /// A group that lost a member is of no use any more.
    void drop_groups(std::span<const GroupId> broken, Time now);
    void note_tellers(ObjectId id);
    void drop_write(WriteId id, Time quarantine_until, Time now, std::span<const SegmentNumber> in_doubt = {}, bool until_report = false);
    void erase_if_empty(ObjectId id);
    /// Puts the object's unit into the eviction order, or takes it out, as its members now allow.
    void update_order(ObjectId id);
    void forget_block(uint64_t owner, SegmentNumber segment, Time now, std::vector<GroupId>& broken);

    const MasterOptions options_;
    StateObserver* const observer_;
    ObjectTable objects_;
    TenantTable tenants_;  // uses objects_
    GroupTable groups_;
    ClientTable clients_;
    SegmentTable segments_;
    Slab<Write, 128> writes_;
    Slab<Copy, 64> copies_;
    TaskTable tasks_;
    TierTable tiers_;
    std::deque<Drain> drains_;
    std::array<uint32_t, 128> running_drains_{};  // by mark
    uint64_t last_task_ = 0, last_job_ = 0;
    IndexList writes_by_age_;
    Quarantine quarantine_;
    HoldLedger leased_, soft_leased_;
    PinCounter soft_pins_;
    std::priority_queue<Return, std::deque<Return>, std::greater<>> returns_;  // which never asks for all its memory anew
    std::vector<Departed> departed_;
    Tombstones tombstones_;
    AbsentNodes absent_;
    Tellers tellers_;
    bool value_lost_ = false;  // and everybody knows
    UnwantedSegments unwanted_;
    Generations generations_;
    size_t values_ = 0;
    StateTotals totals_;
};

}  // namespace mooncake::store
