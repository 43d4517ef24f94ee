// SPDX-License-Identifier: Apache-2.0
// How changes to clients and segments alter the state.
#include <algorithm>

#include "store/master/state.h"

namespace mooncake::store {

void MasterState::apply(const ClientSeen& change) {
    Client& client = clients_[clients_.find_or_insert(change.client)];
    client.alive = true;
    client.attached |= change.attached;
    client.expires = std::max(client.expires, change.expires);
}

void MasterState::apply(const ClientGone& change) {
    const ClientNumber number = clients_.find(change.client);
    MC_CHECK(number != 0 && clients_[number].segments.empty());
    const bool quiet = change.how != ClientEnd::kSilent;
    const Time quiet_from = quiet ? change.now : change.now + options_.silent_writer_rest;
    for (WriteId id = writes_by_age_.first(), next = 0; id != 0; id = next) {
        next = writes_[id].age.next;
        if (writes_[id].client == number)
            drop_write(id, std::min(quiet_from, writes_[id].started + options_.put_release_timeout), change.now);
    }
    Client& client = clients_[number];
    if (client.rests != 0) end_rests_of(number, quiet_from, change.now);
    client.alive = client.attached = false;
    client.expires = {};
    client.closed_requests.clear();
    clients_.drop_if_unused(number);
}

/// The writer is known to be quiet from some time on.
void MasterState::end_rests_of(ClientNumber writer, Time quiet_from, Time now) {
    std::vector<Quarantine::Rest> rests;
    quarantine_.extract([&](const Quarantine::Rest& one) { return one.writer == writer; },
                        [&](const Quarantine::Rest& one) { rests.push_back(one); });
    for (Quarantine::Rest& one : rests) {
        segments_[one.segment].resting_bytes -= one.bytes;
        one.writer = 0;
        one.until = std::min(one.until, quiet_from);
        if (one.until <= now) segments_.free(one.segment, one.block);
        else rest(one);
    }
    clients_[writer].rests = 0;
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
    segments_[number].closed_until = change.closed_until;
    clients_[client].segments.push_back(number);
    segments_.rebuild_view(change.now);
    tenants_.share_out(segments_.capacity());
}

void MasterState::apply(const SegmentStatusSet& change) {
    segments_[change.segment].status = change.status;
    segments_[change.segment].status_end = change.until;
    segments_.rebuild_view(change.now);
}

void MasterState::apply(const SegmentSuspected& change) {
    segments_[change.segment].suspect_until = change.now + change.duration;
    segments_[change.segment].suspect_for = change.duration;
    segments_.rebuild_view(change.now);
}

Time MasterState::block_busy_until(uint64_t owner) const {
    const uint32_t number = owner_number(owner);
    switch (owner_kind(owner)) {
        case OwnerKind::kObject: return objects_[number].lease_end;
        case OwnerKind::kWrite: return writes_[number].started + options_.put_release_timeout;
        case OwnerKind::kCopy: return {};
        case OwnerKind::kResting: return {};  // looked up in the quarantine
    }
    return {};
}

/// One replica is gone with its segment: its owner lives on without it, or not.
void MasterState::forget_block(uint64_t owner, SegmentNumber segment, Time now, std::vector<GroupId>& broken) {
    const uint32_t number = owner_number(owner);
    if (owner_kind(owner) == OwnerKind::kObject) {
        Object& object = objects_[number];
        refund(object.tenant, object.length, 1);
        object.replicas.erase(object.replicas.find(segment));
        if (!object.replicas.empty()) return;
        if (object.group != 0) broken.push_back(object.group);
        drop_value(number, now);
    } else if (owner_kind(owner) == OwnerKind::kWrite) {
        Write& write = writes_[number];
        refund(objects_[write.object].tenant, write.length, 1);
        write.replicas.erase(write.replicas.find(segment));
        if (write.replicas.empty()) drop_write(number, now, now);
    }
}

void MasterState::apply(const SegmentRemoved& change) {
    if (observer_ != nullptr) observer_->segment_removed(*this, change.segment);
    Segment& segment = segments_[change.segment];
    RangeAllocator& allocator = segment.allocator;
    Time busy_until{};
    quarantine_.extract([&](const Quarantine::Rest& rest) { return rest.segment == change.segment; },
                        [&](const Quarantine::Rest& rest) {
                            busy_until = std::max(busy_until, rest.until);
                            if (rest.writer == 0) return;
                            --clients_[rest.writer].rests;
                            clients_.drop_if_unused(rest.writer);
                        });
    std::vector<GroupId> broken;
    for (RangeAllocator::Block block = allocator.first(); block != 0; block = allocator.next(block)) {
        if (allocator.is_free(block)) continue;
        busy_until = std::max(busy_until, block_busy_until(allocator.owner(block)));
        forget_block(allocator.owner(block), change.segment, change.now, broken);
    }
    const ClientNumber client = segment.client;
    if (busy_until > change.now)
        departed_.push_back(
            {.client = clients_[client].id, .base = segment.spec.base, .size = segment.spec.size, .busy_until = busy_until});
    std::erase(clients_[client].segments, change.segment);
    segments_.erase(change.segment);
    segments_.rebuild_view(change.now);
    tenants_.share_out(segments_.capacity());
    // A group that lost a member is of no use any more.
    for (const GroupId group : broken) {
        const std::vector<ObjectId> members = groups_[group].members;  // empty where the last one has gone already
        for (const ObjectId id : members) drop_value(id, change.now);
    }
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
    next_generation_ = std::max(next_generation_, change.generation + 1);
    if (object.generation != change.generation) {
        if (object.has_value()) {  // an older one: newer things are told later, too
            if (observer_ != nullptr && !object.free_of_leases(change.now)) observer_->value_outdated(*this, id);
            drop_ranges_of(object, change.now);
            object.replicas = {};
        } else {
            value_arrived(id);
        }
        object.generation = change.generation;
        object.length = change.length;
        object.checksum = change.checksum;
        object.data_type = change.data_type;
        object.hard_pin = change.hard_pin;
        object.soft_pin_end = change.soft_pin_end;
        object.lease_end = object.promise_end = {};
        set_writer(object, change.writer ? clients_.find_or_insert(change.writer) : 0);
    }
    object.replicas.add(replica);
    hold(object, object.lease_end, change.lease_end);
    charge(tenant, change.length, 1);
    update_order(id);
}

void MasterState::apply(const RangeReserved& change) {
    const RangeAllocator::Block block = segments_.take(change.segment, change.offset, rounded(change.length),
                                                       owner_word(OwnerKind::kResting, 0));
    MC_CHECK(block != 0);
    rest({.segment = change.segment,
          .block = block,
          .writer = change.writer ? clients_.find_or_insert(change.writer) : 0,
          .length = change.length,
          .generation = next_generation_++,
          .until = change.until});
}

}  // namespace mooncake::store
