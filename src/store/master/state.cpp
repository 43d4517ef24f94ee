// SPDX-License-Identifier: Apache-2.0
#include "store/master/state.h"

#include <algorithm>

#include "store/master/walk_counter.h"

namespace mooncake::store {

MasterState::MasterState(const MasterOptions& options, StateObserver* observer)
    : options_(options), observer_(observer), objects_(options.hash_seed), tenants_(objects_, options.offloads()),
      leased_(options.lease_ttl), soft_leased_(options.lease_ttl), generations_(options.first_generation) {
    MC_CHECK(options.first_generation != 0 && options.first_generation < Generations::kEnd);
}

void MasterState::apply(const Change& change) {
    std::visit([this](const auto& one) { apply(one); }, change);
}

TenantNumber MasterState::tenant(std::string_view name) const {
    return options_.tenants && name != TenantTable::kDefaultName ? tenants_.find(name) : TenantTable::kDefault;
}

ObjectId MasterState::unit(ObjectId id) const {
    const GroupId group = objects_[id].group;
    return group == 0 ? id : groups_[group].members.front();
}

std::span<const ObjectId> MasterState::members(const ObjectId& unit) const {
    const GroupId group = objects_[unit].group;
    if (group == 0) return {&unit, 1};
    return groups_[group].members;
}

uint64_t MasterState::bytes_of(ObjectId unit) const {
    const Object& object = objects_[unit];
    return object.group == 0 ? rounded(object.length) : groups_[object.group].bytes;
}

Time MasterState::latest_hold(ObjectId unit, GroupHold Group::*of_group, Time Object::*of_object, Time now) const {
    if (objects_[unit].group == 0) return objects_[unit].*of_object;
    const Group& group = groups_[objects_[unit].group];
    const GroupHold& hold = group.*of_group;
    if (hold.stale && hold.latest > now) {
        hold.latest = {};
        hold.stale = false;
        for (const ObjectId id : group.members) hold.latest = std::max(hold.latest, objects_[id].*of_object);
        steps_walked() += group.members.size();
    }
    return hold.latest;
}

Time MasterState::next_event() const { return std::min({quarantine_.next(), next_return(), segments_.next_change()}); }

uint64_t MasterState::length_of(uint64_t bytes) const {
    uint64_t length = bytes - std::min(bytes, table_bytes(bytes));  // too short by less than one entry of the table
    while (rounded(length) < bytes) ++length;
    MC_CHECK(rounded(length) == bytes);
    return length;
}

// ranges ------------------------------------------------------------------------------------------------------------------

ReplicaList MasterState::take_ranges(const std::vector<ReplicaLocation>& where, uint64_t length, uint64_t owner) {
    ReplicaList replicas;
    for (const ReplicaLocation& location : where) {
        const RangeAllocator::Block block = segments_.take(location.segment, location.offset, rounded(length), owner);
        MC_CHECK(block != 0);
        replicas.add({.offset = location.offset, .segment = location.segment, .block = block});
    }
    return replicas;
}

void MasterState::give_ranges(const ReplicaList& replicas, uint64_t owner) {
    for (size_t i = 0; i < replicas.size(); ++i) segments_[replicas[i].segment].allocator.set_owner(replicas[i].block, owner);
}

void MasterState::drop_range(const Replica& replica, uint64_t length, uint64_t generation, Time until, Time now, Feared feared) {
    if (segments_.is_disk(replica.segment)) until = now;  // its offset is a name that is not used again
    if (observer_ != nullptr) observer_->range_dropped(*this, replica.segment, generation, std::max(until - now, Duration::zero()), false);
    if (segments_[replica.segment].reporting) segments_[replica.segment].dropped.insert(generation);
    if (until <= now) segments_.free(replica.segment, replica.block);
    else
        put_in_quarantine({.segment = replica.segment,
                           .block = replica.block,
                           .writer = feared.writer,
                           .until_report = feared.until_report,
                           .write = feared.write,
                           .copy = feared.copy,
                           .length = length,
                           .generation = generation,
                           .until = until});
}

void MasterState::rest_range(const Replica& replica, uint64_t length, uint64_t generation, Time until, Time now) {
    if (segments_.is_disk(replica.segment)) until = now;
    if (observer_ != nullptr) observer_->range_dropped(*this, replica.segment, generation, std::max(until - now, Duration::zero()), true);
    if (segments_[replica.segment].reporting) segments_[replica.segment].dropped.insert(generation);
    put_in_quarantine({.segment = replica.segment,
                       .block = replica.block,
                       .replaced = true,
                       .length = length,
                       .generation = generation,
                       .until = Time::max(),
                       .leased_until = until});
}

void MasterState::end_rest(QuarantineId id, Time now) {
    Quarantine::Quarantined one = quarantine_.extract(id);
    segments_[one.segment].quarantined_bytes -= one.bytes;
    one.replaced = false;
    one.until = one.leased_until;
    if (one.until <= now) segments_.free(one.segment, one.block);
    else put_in_quarantine(one);
}

void MasterState::put_in_quarantine(Quarantine::Quarantined what) {
    Segment& segment = segments_[what.segment];
    what.bytes = segment.is_disk() ? 0 : segment.allocator.length(what.block);  // of memory
    segment.quarantined_bytes += what.bytes;
    if (what.writer != 0) ++clients_[what.writer].quarantined;
    segment.allocator.set_owner(what.block, owner_word(OwnerKind::kQuarantined, quarantine_.add(what)));
}

void MasterState::end_quarantine(QuarantineId id) {
    const Quarantine::Quarantined one = quarantine_.extract(id);
    segments_[one.segment].quarantined_bytes -= one.bytes;
    segments_.free(one.segment, one.block);
    if (one.writer == 0) return;
    --clients_[one.writer].quarantined;
    clients_.drop_if_unused(one.writer);
}

/// Of its value. Readers keep the bytes until their leases are over, and so long they count as leased.
void MasterState::drop_ranges_of(const Object& object, Time now, const ReplicaList* successor) {
    refund(object.tenant, object.length, memory_replicas(object.replicas));
    if (object.holds_memory()) soft_leased_.remove(object.soft_lease_end, rounded(object.length));
    for (size_t i = 0; i < object.replicas.size(); ++i) {
        const Replica& replica = object.replicas[i];
        const bool rests = successor != nullptr && !same_node(*successor, replica.segment);  // a node hears of its own in order
        if (rests) rest_range(replica, object.length, object.generation, object.read_until(now), now);
        else drop_range(replica, object.length, object.generation, object.read_until(now), now);
    }
}

bool MasterState::same_node(const ReplicaList& replicas, SegmentNumber segment) const {
    for (size_t i = 0; i < replicas.size(); ++i)
        if (segments_[replicas[i].segment].client == segments_[segment].client) return true;
    return false;
}

void MasterState::lease(Object& object, Time until) {
    if (until <= object.lease_end) return;
    if (object.holds_memory()) leased_.move(object.lease_end, until, rounded(object.length));
    object.lease_end = until;
    if (object.group != 0) groups_[object.group].leased.raise(until);
}

void MasterState::lease_softly(Object& object, Time until) {
    if (until <= object.soft_lease_end) return;
    if (object.holds_memory()) soft_leased_.move(object.soft_lease_end, until, rounded(object.length));
    object.soft_lease_end = until;
    if (object.group != 0) groups_[object.group].soft_leased.raise(until);
}

void MasterState::tell_of_memory(Object& object, Time until) {
    object.untold = false;
    const Time least = until - options_.lease_ttl;  // is in the past
    if (object.lease_end > least) leased_.move({}, object.lease_end, rounded(object.length));
    if (object.soft_lease_end > least) soft_leased_.move({}, object.soft_lease_end, rounded(object.length));
}

void MasterState::forget_leases(Object& object) {
    if (object.group != 0) {
        groups_[object.group].leased.lower(object.lease_end);
        groups_[object.group].soft_leased.lower(object.soft_lease_end);
    }
    object.lease_end = object.soft_lease_end = {};
}

void MasterState::set_length(Object& object, uint64_t length) {
    if (object.group != 0) {
        uint64_t& bytes = groups_[object.group].bytes;
        bytes -= object.has_value() ? rounded(object.length) : 0;
        bytes += length == 0 ? 0 : rounded(length);
    }
    if (object.looked_at) tenants_[object.tenant].order.resized(object.length, length);
    object.length = length;
}

void MasterState::soft_pin(Object& object, Time until) {
    soft_pins_.move(object.soft_pin_end, until);
    if (object.group != 0) {
        GroupHold& hold = groups_[object.group].soft_pinned;
        if (until < object.soft_pin_end) hold.lower(object.soft_pin_end);
        hold.raise(until);
    }
    object.soft_pin_end = until;
}

Duration MasterState::rationed(const HoldLedger& ledger, Duration shortest, Time now) const {
    const Duration full = options_.lease_ttl;
    if (options_.held_share == 0 || segments_.capacity() == 0) return full;
    const double share = options_.held_share * static_cast<double>(segments_.capacity());
    const double left = 1.0 - static_cast<double>(ledger.held(now)) / share;
    return std::max(std::chrono::duration_cast<Duration>(full * std::max(left, 0.0)), std::min(full, shortest));
}

Duration MasterState::soft_lease_time(Time now) const {
    constexpr double kCareless = 0.5;  // of the pool in use: below, nothing is at stake
    const bool careless = static_cast<double>(segments_.used_bytes()) < kCareless * static_cast<double>(segments_.capacity());
    return careless ? options_.lease_ttl : rationed(soft_leased_, 200ms, now);
}

Duration MasterState::lease_time(Time now) const { return rationed(leased_, 50ms, now); }

void MasterState::charge(TenantNumber tenant, uint64_t length, size_t replicas) {
    tenants_[tenant].charged_bytes += rounded(length) * replicas;
}

void MasterState::refund(TenantNumber tenant, uint64_t length, size_t replicas) {
    tenants_[tenant].charged_bytes -= rounded(length) * replicas;
}

// groups and order --------------------------------------------------------------------------------------------------------

void MasterState::join_group(ObjectId id, std::string_view name) {
    Object& object = objects_[id];
    GroupId group = groups_.find(object.tenant, name);
    if (group == 0) group = groups_.insert(object.tenant, name);
    object.group = group;
    object.group_position = static_cast<uint32_t>(groups_[group].members.size());
    groups_[group].members.push_back(id);
    groups_[group].writing += !object.has_value();
    groups_[group].blocked += object.blocked;
    groups_[group].in_memory += object.in_memory;
    groups_[group].dirty += object.in_memory && !object.on_disk;
}

void MasterState::leave_group(ObjectId id) {
    Object& object = objects_[id];
    if (object.group == 0) return;
    const GroupId group_id = std::exchange(object.group, 0);
    Group& group = groups_[group_id];
    group.writing -= !object.has_value();
    group.blocked -= object.blocked;
    group.in_memory -= object.in_memory;
    group.dirty -= object.in_memory && !object.on_disk;
    const ObjectId last = group.members.back();
    group.members[object.group_position] = last;
    objects_[last].group_position = object.group_position;
    group.members.pop_back();
    EvictionOrder& order = tenants_[object.tenant].order;
    if (group.members.empty()) {
        if (object.shelf != Shelf::kNone) order.remove(id);
        groups_.erase(group_id);
        return;
    }
    const ObjectId heir = group.members.front();
    if (object.shelf == Shelf::kOrder) {
        order.replace(id, heir);
    } else if (object.shelf != Shelf::kNone) {  // its return was noted under the old name: let it be looked at again
        order.remove(id);
        objects_[heir].used_at = object.used_at;
        order.insert_coldest(heir);
    }
    update_order(heir);
}

void MasterState::change_group(ObjectId id, std::string_view name) {
    Object& object = objects_[id];
    const uint64_t bytes = rounded(object.length);
    if (object.group != 0) {
        groups_[object.group].bytes -= bytes;
        groups_[object.group].soft_pinned.lower(object.soft_pin_end);
        leave_group(id);
    }
    if (name.empty()) return;
    join_group(id, name);
    groups_[object.group].bytes += bytes;
    groups_[object.group].soft_pinned.raise(object.soft_pin_end);
}

void MasterState::update_order(ObjectId id) {
    Object& object = objects_[id];
    const bool blocked = object.hard_pin || object.write != 0 || has_task(object) || !object.has_value();
    if (object.blocked != blocked) {
        object.blocked = blocked;
        if (object.group != 0) blocked ? ++groups_[object.group].blocked : --groups_[object.group].blocked;
    }
    const size_t memory = memory_replicas(object.replicas);
    if (const bool in_memory = memory != 0, on_disk = memory != object.replicas.size();
        in_memory != object.in_memory || on_disk != object.on_disk)
        set_tiers(object, in_memory, on_disk);
    const ObjectId unit_id = unit(id);
    const bool evictable = object.group == 0 ? !blocked && object.in_memory
                                             : groups_[object.group].blocked == 0 && groups_[object.group].in_memory != 0;
    const bool there = objects_[unit_id].shelf != Shelf::kNone;
    if (evictable == there) return;
    EvictionOrder& order = tenants_[object.tenant].order;
    if (evictable) order.insert(unit_id);
    else order.remove(unit_id);
}

// objects -----------------------------------------------------------------------------------------------------------------

void MasterState::set_writer(Object& object, ClientNumber writer) {
    if (object.writer == writer) return;
    if (writer != 0) ++clients_[writer].objects;
    if (object.writer != 0) {
        --clients_[object.writer].objects;
        clients_.drop_if_unused(object.writer);
    }
    object.writer = writer;
}

void MasterState::value_arrived(ObjectId id) {
    ++values_;
    if (const GroupId group = objects_[id].group; group != 0) --groups_[group].writing;
}

/// A node of an earlier life may hold an older one, and report it to us or to the next master, which does not know our tombstones. If the value is ours it
/// has left one when it was written.
void MasterState::note_lost_value(const Object& object) {
    if (!object.has_value()) return;
    if (!generations_.is_own(object.generation) && absent_.any()) tombstones_.leave(tombstone_hash(object), object.generation);
    if (value_lost_ || !absent_.earlier_life()) return;
    value_lost_ = true;
    if (observer_ != nullptr) observer_->tombstone_left(*this);
}

void MasterState::drop_value(ObjectId id, Time now) {
    Object& object = objects_[id];
    if (!object.has_value()) return;
    if (observer_ != nullptr && !object.free_of_leases(now)) observer_->value_outdated(*this, id);
    if (object.copy != 0) cancel_copy(object.copy, StoreCode::kReplicaIsGone, "the value is gone", now + options_.put_release_timeout, now);
    --values_;
    drop_ranges_of(object, now);
    object.replicas = {};
    set_tiers(object, false, false);
    object.queued = false;
    set_length(object, 0);
    object.generation = object.checksum = 0;
    forget_leases(object);
    soft_pin(object, {});
    if (object.group != 0) ++groups_[object.group].writing;
    set_writer(object, 0);
    erase_if_empty(id);
}

void MasterState::erase_if_empty(ObjectId id) {
    Object& object = objects_[id];
    if (object.has_value() || object.write != 0) {
        update_order(id);
        return;
    }
    const TenantNumber tenant = object.tenant;
    if (object.group != 0) leave_group(id);
    else if (object.shelf != Shelf::kNone) tenants_[tenant].order.remove(id);
    objects_.erase(id);
    --tenants_[tenant].objects;
    tenants_.drop_if_unused(tenant);
}

void MasterState::forget_write(WriteId id) {
    writes_by_age_.erase(id, [this](WriteId other) -> Links& { return writes_[other].age; });
    clients_[writes_[id].client].writes.erase(id, [this](WriteId other) -> Links& { return writes_[other].of_client; });
    writes_.give_back(id);
}

void MasterState::drop_write(WriteId id, Time quarantine_until, Time now, std::span<const SegmentNumber> in_doubt, bool until_report) {
    Write& write = writes_[id];
    const ObjectId object_id = write.object;
    Object& object = objects_[object_id];
    if (quarantine_until > now) ++totals_.discarded_writes;
    if (write.started + options_.put_release_timeout <= now) ++totals_.expired_writes;
    refund(object.tenant, write.length, write.replicas.size());
    const Time doubt_until = std::max(quarantine_until, write.started + options_.put_release_timeout);
    for (size_t i = 0; i < write.replicas.size(); ++i) {
        const bool doubtful = std::find(in_doubt.begin(), in_doubt.end(), write.replicas[i].segment) != in_doubt.end();
        drop_range(write.replicas[i], write.length, write.generation, doubtful ? doubt_until : quarantine_until, now,
                   {.writer = write.client, .until_report = until_report, .write = true});
    }
    object.write = 0;
    forget_write(id);
    erase_if_empty(object_id);
}

// time --------------------------------------------------------------------------------------------------------------------

void MasterState::apply(const SetAside& change) {
    const Object& object = objects_[change.object];
    tenants_[object.tenant].order.set_aside(change.object, change.shelf);
    if (change.shelf == Shelf::kDirty) return queue_offload_of(change.object);
    returns_.push({.at = change.until, .object = change.object, .generation = object.generation});
}

void MasterState::apply(const ClockAdvanced& change) {
    constexpr size_t kReleasedAtOnce = 16384;  // some milliseconds; the others are still due, and come with the next operation
    quarantine_.release(change.now, kReleasedAtOnce, [this](const Quarantine::Quarantined& quarantine) {
        segments_[quarantine.segment].quarantined_bytes -= quarantine.bytes;
        segments_.free(quarantine.segment, quarantine.block);
        if (quarantine.writer == 0) return;
        --clients_[quarantine.writer].quarantined;
        clients_.drop_if_unused(quarantine.writer);
    });
    std::vector<ObjectId> back;
    for (; !returns_.empty() && returns_.top().at <= change.now; returns_.pop()) {
        const Return& due = returns_.top();
        if (!objects_.exists(due.object) || objects_[due.object].generation != due.generation) continue;
        const Shelf shelf = objects_[due.object].shelf;
        if (shelf != Shelf::kNone && shelf != Shelf::kOrder) back.push_back(due.object);
    }
    // Whose hold ended first becomes the coldest. One that was set aside twice is noted twice.
    std::for_each(back.rbegin(), back.rend(), [&](ObjectId id) { tenants_[objects_[id].tenant].order.bring_back(id); });
    std::erase_if(departed_, [&](const Departed& gone) { return gone.until <= change.now; });
    if (segments_.next_change() <= change.now) segments_.rebuild_view(change.now);
}

}  // namespace mooncake::store
