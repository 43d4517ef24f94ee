// SPDX-License-Identifier: Apache-2.0
// How changes to objects alter the state.
#include <algorithm>

#include "base/prefetch.h"
#include "store/master/state.h"

namespace mooncake::store {

void MasterState::apply(const WriteStarted& change) {
    ObjectId id = change.object;
    if (id == 0) {
        id = objects_.insert(change.tenant, change.key.get());
        ++tenants_[change.tenant].objects;
        if (!change.group.get().empty()) join_group(id, change.group.get());
    }
    const WriteId write_id = writes_.take();
    Write& write = writes_[write_id];
    write.object = id;
    write.client = clients_.find(change.client);
    MC_CHECK(write.client != 0);
    write.request_id = change.request_id;
    write.generation = change.generation;
    write.length = change.length;
    write.started = change.now;
    write.soft_pin_ttl = change.soft_pin_ttl;
    write.soft_pin = change.soft_pin;
    write.data_type = change.data_type;
    write.hard_pin = change.hard_pin;
    write.regroups = change.regroups;
    if (change.regroups) write.group = change.group.get();
    write.replicas = take_ranges(change.replicas, change.length, owner_word(OwnerKind::kWrite, write_id));
    writes_by_age_.push_back(write_id, [this](WriteId other) -> Links& { return writes_[other].age; });
    clients_[write.client].writes.push_back(write_id, [this](WriteId other) -> Links& { return writes_[other].of_client; });
    charge(objects_[id].tenant, change.length, change.replicas.size());
    MC_CHECK(generations_.take() == change.generation);
    objects_[id].write = write_id;
    update_order(id);
    for (size_t i = 0; observer_ != nullptr && i < write.replicas.size(); ++i)
        observer_->range_planned(*this, write.replicas[i].segment, write_id);
}

void MasterState::apply(const WriteCommitted& change) {
    Write& write = writes_[change.write];
    const ObjectId id = write.object;
    Object& object = objects_[id];
    // Before anybody hears that the older value goes.
    for (size_t i = 0; observer_ != nullptr && i < write.replicas.size(); ++i)
        observer_->range_filled(*this, write.replicas[i].segment, write.generation, change.checksum);
    const uint64_t rank = generations_.rank(write.generation);
    tombstones_.ended(rank, generations_.next_rank());
    if (object.copy != 0) cancel_tier_copy(object, change.now);
    if (object.has_value()) {
        if (observer_ != nullptr && !object.free_of_leases(change.now)) observer_->value_outdated(*this, id);
        leave_tombstone(tombstone_hash(object), rank);
        tellers_.forget(object.generation);
        drop_ranges_of(object, change.now, change.replaced_rests ? &write.replicas : nullptr);
    } else {
        // Nothing of this life is contradicted, so nobody need be told.
        if (absent_.watch(change.now)) tombstones_.leave(tombstone_hash(object), rank);
        value_arrived(id);
    }
    object.replicas = std::move(write.replicas);
    give_ranges(object.replicas, owner_word(OwnerKind::kObject, id));
    set_length(object, write.length);
    object.generation = write.generation;
    object.checksum = change.checksum;
    object.moved_by = 0;
    object.queued = false;
    tiers_.put_bytes += write.length;
    forget_leases(object);
    object.data_type = write.data_type;
    object.hard_pin |= write.hard_pin;
    if (write.soft_pin == SoftPinAction::kEnable) soft_pin(object, change.now + write.soft_pin_ttl);
    if (write.soft_pin == SoftPinAction::kDisable) soft_pin(object, {});
    set_writer(object, write.client);
    object.write = 0;
    if (write.regroups) change_group(id, write.group);
    forget_write(change.write);
    update_order(id);
    if (offloads() && !options_.offload_on_evict) queue_offload(id);
}

void MasterState::apply(const ReplacedTold& change) {
    for (const QuarantineId id : quarantine_.find_replaced(change.generation))
        if (quarantine_[id].segment == change.segment) end_rest(id, change.now);
}

void MasterState::apply(const WriteDropped& change) { drop_write(change.write, change.quarantine_until, change.now, change.in_doubt); }

void MasterState::apply(const WriterStopped& change) {
    const ClientNumber writer = clients_.find(change.client);
    MC_CHECK(writer != 0);
    for (const QuarantineId id : quarantine_.find_write(change.generation)) {
        const SegmentNumber segment = quarantine_[id].segment;
        const bool doubtful = std::find(change.in_doubt.begin(), change.in_doubt.end(), segment) != change.in_doubt.end();
        if (quarantine_[id].writer == writer && !doubtful) end_quarantine(id);
    }
}

void MasterState::apply(const LeasesGranted& change) {
    constexpr size_t kAhead = 8;  // the neighbours in the eviction order are far apart in memory
    const std::vector<ObjectId>& ids = change.objects;
    for (size_t i = ids.size();
         i-- > 0;) {  // the first key becomes the youngest: a prefix is of use without the rest, not the other way round
        if (i >= kAhead) {
            const Links& links = objects_[ids[i - kAhead]].order;
            prefetch_to_write(&objects_[links.previous].order);
            prefetch_to_write(&objects_[links.next].order);
        }
        Object& object = objects_[ids[i]];
        if (object.untold) tell_of_memory(object, change.until);
        lease(object, change.until);
        lease_softly(object, change.soft_leased);
        if (!object.in_memory) note_disk_read(ids[i]);
        const ObjectId unit_id = unit(ids[i]);
        if (objects_[unit_id].shelf != Shelf::kNone) tenants_[object.tenant].order.touch(unit_id);
    }
}

void MasterState::apply(const SoftLeasesGranted& change) {
    for (const ObjectId id : change.objects) {
        lease_softly(objects_[id], change.until);
    }
}

void MasterState::apply(const ObjectsRemoved& change) {
    if (change.cause == RemovalCause::kEvicted) {
        for (const ObjectId id : change.objects) {
            const uint64_t bytes = rounded(objects_[id].length) * memory_replicas(objects_[id].replicas);
            totals_.evicted_bytes += bytes;
            tenants_[objects_[id].tenant].evicted_bytes += bytes;
        }
        totals_.evicted_objects += change.objects.size();
    }
    for (const ObjectId id : change.objects) {
        // What was evicted may come back: it is the value of its key all the same (an older one is not). What was removed may not, nor a later
        // value of the key that some node has yet to tell us of.
        if (change.cause == RemovalCause::kAsked) {
            leave_tombstone(tombstone_hash(objects_[id]), generations_.next_rank());
            tellers_.forget(objects_[id].generation);
        } else {
            note_lost_value(objects_[id]);
        }
        drop_value(id, change.now);
    }
}

void MasterState::leave_tombstone(uint64_t key_hash, uint64_t rank) {
    tombstones_.leave(key_hash, rank);
    if (observer_ != nullptr) observer_->tombstone_left(*this);
}

void MasterState::apply(const TombstoneLeft& change) {
    leave_tombstone(tombstone_hash(tenants_.hash(change.tenant), change.key), generations_.next_rank());
}

void MasterState::apply(const RemovalBegun&) {
    generations_.take();  // writes that have ended by now end before the removal
    tombstones_.begin_removal(generations_.next_rank());
}

void MasterState::apply(const TombstoneOfAll& change) {
    tombstones_.leave_for_all(change.tenant ? tenants_.hash(*change.tenant) : 0, change.rank);
    if (observer_ != nullptr) observer_->tombstone_left(*this);
}

void MasterState::apply(const TombstoneOfMatching& change) {
    if (absent_.watch(change.now))
        tombstones_.leave_for_matching(change.tenant ? tenants_.hash(*change.tenant) : 0, change.matches, change.rank, change.cost);
    if (observer_ != nullptr) observer_->tombstone_left(*this);
}

void MasterState::apply(const ReplicaRemoved& change) {
    Object& object = objects_[change.object];
    drop_replica(object, change.segment, change.now);
    update_order(change.object);
    if (change.job) moved(change.job, object);
}

}  // namespace mooncake::store
