// SPDX-License-Identifier: Apache-2.0
// How changes to clients and segments alter the state.
#include <algorithm>

#include "store/master/state.h"
#include "store/master/walk_counter.h"

namespace mooncake::store {

void MasterState::apply(const Restarted& change) {
    for (ClientNumber number = 1; number < clients_.limit(); ++number)
        if (clients_[number].attached) clients_[number].attached = false;
    for (const SegmentNumber number : segments_.numbers()) {
        segments_[number].reporting = true;
        segments_[number].adopting = false;
    }
    // Nobody is left who would say so. Nodes mount or report before anything new goes there.
    std::vector<QuarantineId> resting;
    quarantine_.for_each([&](QuarantineId id, const Quarantine::Quarantined& one) {
        if (one.replaced) resting.push_back(id);
    });
    for (const QuarantineId id : resting) end_rest(id, change.now);
    segments_.rebuild_view(change.now);
}

void MasterState::apply(const ClientSeen& change) {
    Client& client = clients_[clients_.find_or_insert(change.client)];
    client.alive = true;
    client.attached |= change.attached;
    if (change.life) client.life = change.life;
    client.restarted |= change.restarted;
    client.expires = std::max(client.expires, change.expires);
    if (options_.silent_after == Duration::zero()) return;
    for (const SegmentNumber segment : client.segments)
        segments_.heard(segment, client.expires - options_.client_ttl + options_.silent_after);
}

void MasterState::apply(const ClientLeaves& change) {
    const ClientNumber number = clients_.find(change.client);
    MC_CHECK(number != 0 && clients_[number].alive);
    clients_[number].leaving = change.how;
    if (clients_[number].segments.empty()) return;
    for (const SegmentNumber segment : clients_[number].segments) segments_[segment].leaving = true;
    segments_.rebuild_view(change.now);  // once for all of them
}

void MasterState::apply(const ClientGone& change) {
    const ClientNumber number = clients_.find(change.client);
    MC_CHECK(number != 0 && clients_[number].segments.empty());
    const bool quiet = change.how == ClientEnd::kGoodbye;  // who is replaced may not have heard of it
    // Its connection is up, so the process is there and does not run. When it goes on, its threads finish what they were copying before any of
    // them hears of us: what it was writing is in quarantine until it reports.
    const bool stopped = !quiet && clients_[number].follows;
    // A client that nobody answers believes in its master until it expires.
    const Time silent_from = std::max(change.now, clients_[number].expires);
    const Time quiet_from = quiet ? change.now
                                  : silent_from + (stopped ? options_.stopped_writer_quarantine : options_.silent_writer_quarantine);
    for (WriteId id = clients_[number].writes.first(), next = 0; id != 0; id = next, ++steps_walked()) {
        next = writes_[id].of_client.next;
        drop_write(id, quiet_from, change.now, {}, /*until_report=*/stopped);
    }
    if (!stopped) end_quarantine_of(number, quiet_from, change.now, false);
    if (quiet) std::erase_if(departed_, [&](const Departed& gone) { return gone.writer == change.client; });
    tenants_.follow_capacity(segments_.capacity());
    Client& client = clients_[number];
    client.alive = client.attached = client.follows = client.restarted = false;
    client.leaving.reset();
    client.expires = {};
    client.stream_down_since = Time::max();
    client.closed_requests.clear();
    clients_.drop_if_unused(number);
}

void MasterState::apply(const WriterQuiet& change) {
    const ClientNumber number = clients_.find(change.client);
    MC_CHECK(number != 0);
    end_quarantine_of(number, change.now, change.now, true);
}

void MasterState::end_quarantine_of(ClientNumber writer, Time quiet_from, Time now, bool reported_only) {
    if (clients_[writer].quarantined == 0) return;
    for (QuarantineId id = quarantine_.first_of(writer), next = 0; id != 0; id = next, ++steps_walked()) {
        next = quarantine_.next_of_writer(id);
        if (reported_only && !quarantine_[id].until_report) continue;
        Quarantine::Quarantined one = quarantine_.extract(id);
        --clients_[writer].quarantined;
        segments_[one.segment].quarantined_bytes -= one.bytes;
        one.writer = 0;
        one.write = false;
        one.copy = 0;
        one.until = std::min(one.until, std::max(quiet_from, one.leased_until));
        if (one.until <= now) segments_.free(one.segment, one.block);
        else put_in_quarantine(one);
    }
}

void MasterState::apply(const ClientFollows& change) {
    const ClientNumber number = clients_.find(change.client);
    MC_CHECK(number != 0);
    clients_[number].follows = change.follows;
    clients_[number].stream_down_since = change.follows ? Time::max() : change.now;
    for (const SegmentNumber segment : clients_[number].segments) segments_[segment].stream_down = !change.follows;
    segments_.rebuild_view(change.now);
}

void MasterState::apply(const RequestClosed& change) {
    std::vector<uint64_t>& closed = clients_[clients_.find(change.client)].closed_requests;
    if (closed.size() == Client::kClosedRequests) closed.erase(closed.begin());
    closed.push_back(change.request_id);
}

void MasterState::apply(const SegmentMounted& change) {
    const ClientNumber client = clients_.find(change.client);
    MC_CHECK(client != 0);
    const SegmentNumber number = segments_.insert(change.segment, client, options_.alignment);
    clients_[client].segments.push_back(number);
    segments_[number].stream_down = clients_[client].stream_down_since != Time::max();
    if (options_.silent_after != Duration::zero()) segments_[number].heard_until = change.now + options_.silent_after;
    if (change.segment.kind == SegmentKind::kDisk) add_disk(number);
    else meet_departed(number, change.now);  // the view changes when it is opened
    tenants_.share_out(segments_.capacity());
}

void MasterState::apply(const SegmentOpened& change) {
    Segment& segment = segments_[change.segment];
    const auto stopped = [this](const ClientId& writer) {  // it has reported to us meanwhile
        const ClientNumber number = writer ? clients_.find(writer) : 0;
        return number != 0 && clients_[number].has_stopped();
    };
    std::vector<BusyMemory> busy = std::exchange(segment.busy, {});
    std::sort(busy.begin(), busy.end(), [](const BusyMemory& a, const BusyMemory& b) { return a.offset < b.offset; });
    for (const BusyMemory& one : busy)
        if (one.until > change.now && !stopped(one.writer)) quarantine_free_parts(change.segment, one);
    segment.reporting = false;
    segment.dropped = {};
    absent_.back(segment.spec.id);
    segment.allocator.drop_address_index();
    segment.closed_until = std::max(segment.closed_until, change.closed_until);
    segments_.rebuild_view(change.now);
}

void MasterState::apply(const RangeBusy& change) {
    segments_[change.segment].busy.push_back(
        {.offset = change.offset, .bytes = rounded(change.length), .until = change.until, .writer = change.writer});
}

void MasterState::quarantine_free_parts(SegmentNumber number, const BusyMemory& busy) {
    const RangeAllocator& allocator = segments_[number].allocator;
    const uint64_t end = std::min(busy.offset + busy.bytes, allocator.capacity());
    for (uint64_t at = busy.offset; at < end;) {
        const RangeAllocator::Block block = allocator.block_at(at);
        const uint64_t part_end = std::min(end, allocator.offset(block) + allocator.length(block));
        if (allocator.is_free(block))
            put_in_quarantine({.segment = number,
                               .block = segments_.take(number, at, part_end - at, owner_word(OwnerKind::kQuarantined, 0)),
                               .writer = busy.writer ? clients_.find_or_insert(busy.writer) : 0,
                               .until_report = static_cast<bool>(busy.writer),
                               .length = length_of(part_end - at),
                               .generation = generations_.take(),
                               .until = busy.until});
        at = part_end;
    }
}

/// The same memory is back under another number, maybe lent by another client of the same engine, or at other addresses by the next life of its node: what may still be written to is taken at once,
/// what may be read when the node has told what lies there.
void MasterState::meet_departed(SegmentNumber number, Time now) {
    const SegmentSpec& spec = segments_[number].spec;
    const ClientId& client = clients_[segments_[number].client].id;
    const auto was_here = [&](const Departed& gone) {
        if (gone.segment == spec.id) return true;
        const bool same_engine = gone.engine && gone.engine == spec.incarnation;
        return same_engine || (gone.client == client && (!gone.engine || !spec.incarnation));
    };
    const auto address_of = [&](const Departed& gone) { return gone.segment == spec.id ? spec.base + gone.offset : gone.address; };
    const uint64_t mask = ~(options_.alignment - 1);
    const uint64_t capacity = segments_[number].allocator.capacity();
    for (const Departed& gone : departed_) {
        if (!was_here(gone) || gone.until <= now) continue;
        const uint64_t address = address_of(gone);
        const uint64_t begin = std::max(address, spec.base), limit = std::min(address + gone.bytes, spec.base + spec.size);
        if (begin >= limit) continue;
        const uint64_t offset = (begin - spec.base) & mask;
        const uint64_t end = std::min((limit - spec.base + options_.alignment - 1) & mask, capacity);
        if (offset >= end) continue;
        const ClientNumber writer = gone.writer ? clients_.find(gone.writer) : 0;
        // A writer that ended by silence was given at most this long, beginning before now.
        const bool quiet_soon = gone.writer && !clients_.alive(writer);
        const Time until = quiet_soon ? std::min(gone.until, now + options_.client_ttl + options_.silent_writer_quarantine) : gone.until;
        const BusyMemory busy{.offset = offset, .bytes = end - offset, .until = until};
        if (gone.writer) quarantine_free_parts(number, busy);
        else segments_[number].busy.push_back(busy);
    }
    std::erase_if(departed_, [&](const Departed& gone) {
        const uint64_t address = address_of(gone);
        return was_here(gone) && address >= spec.base && address + gone.bytes <= spec.base + spec.size;
    });
}

void MasterState::apply(const SegmentStatusSet& change) {
    segments_[change.segment].status = change.status;
    segments_[change.segment].status_end = change.until;
    segments_.rebuild_view(change.now);
}

void MasterState::apply(const SegmentSuspected& change) { segments_.suspect(change.segment, change.now, change.duration); }

void MasterState::note_departed(SegmentNumber number, RangeAllocator::Block block, Time now) {
    const Segment& segment = segments_[number];
    const uint64_t owner = segment.allocator.owner(block);
    Departed gone{.client = clients_[segment.client].id,
                  .engine = segment.spec.incarnation,
                  .segment = segment.spec.id,
                  .offset = segment.allocator.offset(block),
                  .address = segment.spec.base + segment.allocator.offset(block),
                  .bytes = segment.allocator.length(block)};
    switch (owner_kind(owner)) {
        case OwnerKind::kObject: gone.until = objects_[owner_number(owner)].lease_end; break;
        case OwnerKind::kWrite: {
            const Write& write = writes_[owner_number(owner)];
            gone.until = write.started + options_.put_release_timeout;
            gone.writer = clients_[write.client].id;
            break;
        }
        case OwnerKind::kCopy:
            gone.until = now + options_.put_release_timeout;
            gone.writer = clients_[copies_[owner_number(owner)].client].id;
            break;
        case OwnerKind::kQuarantined: {
            const Quarantine::Quarantined& one = quarantine_[owner_number(owner)];
            gone.until = one.replaced ? one.leased_until : one.until;
            if (one.writer != 0) gone.writer = clients_[one.writer].id;
            break;
        }
    }
    if (gone.until <= now) return;
    if (!departed_.empty() && !gone.writer && !departed_.back().writer && departed_.back().client == gone.client &&
        departed_.back().segment == gone.segment &&
        departed_.back().address + departed_.back().bytes == gone.address) {  // neighbours wait for each other: there may be very many
        departed_.back().bytes += gone.bytes;
        departed_.back().until = std::max(departed_.back().until, gone.until);
    } else {
        departed_.push_back(gone);
    }
}

/// One replica is gone with its segment: its owner lives on without it, or not.
void MasterState::forget_block(uint64_t owner, SegmentNumber segment, Time now, std::vector<GroupId>& broken) {
    const uint32_t number = owner_number(owner);
    if (owner_kind(owner) == OwnerKind::kObject) {
        Object& object = objects_[number];
        refund(object.tenant, object.length, segments_.is_disk(segment) ? 0 : 1);
        object.replicas.erase(object.replicas.find(segment));
        if (object.copy != 0 && copies_[object.copy].source == segment)
            cancel_copy(object.copy, StoreCode::kReplicaIsGone, "the source is gone", now + options_.put_release_timeout, now);
        if (!object.replicas.empty()) return update_order(number);
        if (object.group != 0) broken.push_back(object.group);
        note_lost_value(object);
        drop_value(number, now);
    } else if (owner_kind(owner) == OwnerKind::kWrite) {
        Write& write = writes_[number];
        refund(objects_[write.object].tenant, write.length, 1);
        write.replicas.erase(write.replicas.find(segment));
        if (write.replicas.empty()) drop_write(number, now, now);
    } else if (owner_kind(owner) == OwnerKind::kQuarantined) {
        const ClientNumber writer = quarantine_.extract(number).writer;
        if (writer == 0) return;
        --clients_[writer].quarantined;
        clients_.drop_if_unused(writer);
    } else if (owner_kind(owner) == OwnerKind::kCopy) {
        Copy& copy = copies_[number];
        refund(objects_[copy.object].tenant, objects_[copy.object].length, segments_.is_disk(segment) ? 0 : 1);
        copy.targets.erase(copy.targets.find(segment));
        if (copy.targets.empty()) cancel_copy(number, StoreCode::kSegmentNotFound, "the target is gone", now, now);
    }
}

void MasterState::apply(const SegmentUnwanted& change) {
    unwanted_.add(UnwantedSegments::of(change.segment, change.client));
    if (!change.may_return) absent_.back(change.segment);
}

void MasterState::apply(const SegmentRemoved& change) {
    if (observer_ != nullptr) observer_->segment_removed(*this, change.segment);
    if (const Segment& segment = segments_[change.segment]; change.may_return) {
        if (segment.reporting && segment.adopting) absent_.still_away(segment.spec.id, change.now);
        else absent_.left(segment.spec.id, change.now);
    }
    const RangeAllocator& allocator = segments_[change.segment].allocator;
    const bool disk = segments_.is_disk(change.segment);  // which has no addresses
    for (RangeAllocator::Block block = disk ? 0 : allocator.first(); block != 0; block = allocator.next(block))
        if (!allocator.is_free(block)) note_departed(change.segment, block, change.now);
    std::vector<GroupId> broken;
    for (RangeAllocator::Block block = allocator.first(); block != 0; block = allocator.next(block))
        if (!allocator.is_free(block)) forget_block(allocator.owner(block), change.segment, change.now, broken);
    const ClientNumber client = segments_[change.segment].client;
    std::vector<SegmentNumber>& lent = clients_[client].segments;
    lent.erase(std::find(lent.rbegin(), lent.rend(), change.segment).base() - 1);
    if (disk) remove_disk(change.segment, client);
    const bool writable = segments_[change.segment].view_position != UINT32_MAX;
    segments_.erase(change.segment);
    if (writable) segments_.rebuild_view(change.now);  // of very many that go together none is in it any more
    if (!clients_[client].leaving) tenants_.share_out(segments_.capacity());
    drop_groups(broken, change.now);
}

void MasterState::drop_groups(std::span<const GroupId> broken, Time now) {
    for (const GroupId group : broken) {
        const std::vector<ObjectId> members = groups_[group].members;  // empty where the last one has gone already
        for (const ObjectId id : members) {
            note_lost_value(objects_[id]);
            drop_value(id, now);
        }
    }
}

void MasterState::apply(const ReportsWithdrawn& change) {
    std::vector<GroupId> broken;
    const auto drop = [&](ObjectId id) {
        if (objects_[id].group != 0) broken.push_back(objects_[id].group);
        note_lost_value(objects_[id]);
        drop_value(id, change.now);
    };
    for (const auto& [generation, id] : tellers_.withdraw(change.clients))
        if (objects_.exists(id) && objects_[id].generation == generation) drop(id);
    for (ObjectId id = 1; tellers_.forgot() && id < objects_.limit(); ++id) {  // it may be a copy of what they told
        const uint64_t generation = objects_.exists(id) ? objects_[id].generation : 0;
        if (generation != 0 && !generations_.is_own(generation) && !tellers_.knows(generation)) drop(id);
    }
    drop_groups(broken, change.now);
}

void MasterState::apply(const ValueAdopted& change) {
    const TenantNumber tenant = tenants_.find_or_insert(change.tenant);
    ObjectId id = objects_.find(tenant, change.key);
    if (id == 0) {
        id = objects_.insert(tenant, change.key);
        ++tenants_[tenant].objects;
        if (!change.group.empty()) join_group(id, change.group);
    }
    Object& object = objects_[id];
    const RangeAllocator::Block block = segments_.take(change.segment, change.offset, rounded(change.length),
                                                       owner_word(OwnerKind::kObject, id));
    MC_CHECK(block != 0);
    const Replica replica{.offset = change.offset, .segment = change.segment, .block = block};
    if (object.generation != change.generation) {
        if (object.has_value()) {  // an older one: newer things are told later, too
            if (observer_ != nullptr && !object.free_of_leases(change.now)) observer_->value_outdated(*this, id);
            cancel_tier_copy(object, change.now);
            drop_ranges_of(object, change.now);
            object.replicas = {};
        } else {
            value_arrived(id);
        }
        set_length(object, change.length);
        object.generation = change.generation;
        object.checksum = change.checksum;
        object.moved_by = 0;
        object.queued = false;
        object.data_type = change.data_type;
        object.hard_pin = change.hard_pin;
        soft_pin(object, change.soft_pin_end);
        forget_leases(object);
        set_writer(object, change.writer ? clients_.find_or_insert(change.writer) : 0);
    }
    object.replicas.add(replica);
    if (tellers_.knows(change.generation)) {
        const bool by_itself = !absent_.contains(segments_[change.segment].spec.id);
        tellers_.reported(change.generation, id, clients_[segments_[change.segment].client].id, by_itself);
    }
    charge(tenant, change.length, segments_.is_disk(change.segment) ? 0 : 1);
    update_order(id);
    lease(object, change.lease_end);
}

void MasterState::apply(const GenerationSeen& change) { generations_.seen(change.generation); }

void MasterState::apply(const RangeReserved& change) {
    const RangeAllocator::Block block = segments_.take(change.segment, change.offset, rounded(change.length),
                                                       owner_word(OwnerKind::kQuarantined, 0));
    MC_CHECK(block != 0);
    put_in_quarantine({.segment = change.segment,
                       .block = block,
                       .writer = change.writer ? clients_.find_or_insert(change.writer) : 0,
                       .until_report = true,
                       .length = change.length,
                       .generation = generations_.take(),
                       .until = change.until,
                       .leased_until = change.leased_until});
}

}  // namespace mooncake::store
