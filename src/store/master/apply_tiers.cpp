// SPDX-License-Identifier: Apache-2.0
// How values move between memory and disks (docs/tiers.md): what is queued, under way, and where they lie.
#include <algorithm>

#include "store/master/state.h"

namespace mooncake::store {

namespace {

/// Codes of a copy that broke off for reasons the disk has nothing to do with.
bool is_innocent(StoreCode code) {
    return code == StoreCode::kReplicaIsGone || code == StoreCode::kObjectNotFound || code == StoreCode::kSegmentNotFound ||
           code == StoreCode::kReplicaNotFound || code == StoreCode::kInvalidVersion || code == StoreCode::kUnavailableInCurrentStatus;
}

}  // namespace

// what there is -----------------------------------------------------------------------------------------------------------

size_t MasterState::count_in_memory(const ReplicaList& replicas) const {
    size_t count = 0;
    for (size_t i = 0; i < replicas.size(); ++i) count += segments_.is_disk(replicas[i].segment) ? 0 : 1;
    return count;
}

void MasterState::set_tiers_of_counted(Object& object, bool in_memory, bool on_disk) {
    if (object.group != 0) {
        Group& group = groups_[object.group];
        group.in_memory = group.in_memory - object.in_memory + in_memory;
        group.dirty = group.dirty - (object.in_memory && !object.on_disk) + (in_memory && !on_disk);
    }
    tiers_.on_disk_values = tiers_.on_disk_values - object.on_disk + on_disk;
    tiers_.disk_only_values = tiers_.disk_only_values - (object.on_disk && !object.in_memory) + (on_disk && !in_memory);
    object.in_memory = in_memory;
    object.on_disk = on_disk;
    object.untold &= in_memory && on_disk;
}

bool MasterState::is_clean(ObjectId unit) const {
    if (segments_.disks() == 0) return false;
    const Object& object = objects_[unit];
    return object.group == 0 ? object.on_disk : groups_[object.group].dirty == 0;
}

SegmentNumber MasterState::disk_for(ClientNumber client, uint64_t length) const {
    for (const SegmentNumber disk : clients_[client].disks)
        if (segments_.stays(disk) && rounded(length) <= segments_[disk].allocator.capacity()) return disk;
    return 0;
}

bool MasterState::disk_awaits(const Object& object) const {
    if (!object.in_memory || object.on_disk) return false;
    for (size_t i = 0; i < object.replicas.size(); ++i) {
        const ClientNumber client = segments_[object.replicas[i].segment].client;
        if (disk_for(client, object.length) != 0 && tiers_.nodes.at(client).works()) return true;
    }
    return false;
}

bool MasterState::waits_for_disk(ObjectId unit) const {
    constexpr size_t kLooksMax = 8;  // members of a group
    if (!offloads() || options_.offload_force_evict || is_clean(unit)) return false;
    size_t left = kLooksMax;
    for (const ObjectId id : members(unit)) {
        if (disk_awaits(objects_[id])) return true;
        if (--left == 0) break;
    }
    return false;
}

uint64_t MasterState::cold_bytes() const {
    if (!options_.tenants) return tenants_[TenantTable::kDefault].order.policy().seen_bytes();
    uint64_t sum = 0;
    for (TenantNumber number = 1; number < tenants_.limit(); ++number)
        if (tenants_.exists(number)) sum += tenants_[number].order.policy().seen_bytes();
    return sum;
}

/// Below its watermark, or where what would have to go for it is on disks.
bool MasterState::may_promote() const {
    constexpr uint64_t kCleanShare = 32;
    const uint64_t capacity = segments_.capacity();
    const uint64_t used = segments_.used_bytes() - std::min(segments_.used_bytes(), quarantine_.bytes());
    if (static_cast<double>(used) < options_.high_watermark * static_cast<double>(capacity)) return true;
    return offloads() && !options_.offload_force_evict && cold_bytes() >= capacity / kCleanShare;
}

Duration MasterState::disk_wait(uint64_t bytes) const {
    constexpr Duration kLeast = 2ms, kMost = 2s;
    Duration wait = Duration::max();
    for (const auto& [client, node] : tiers_.nodes) {
        if (!node.works() || (node.under_way == 0 && node.offloads.empty())) continue;
        wait = std::min(wait, std::clamp<Duration>(node.time_for(bytes), kLeast, kMost));
    }
    return wait;
}

CopyId MasterState::find_tier_copy(const TaskId& task) const {
    if (task.high != options_.first_generation) return 0;
    const auto found = tiers_.copies.find(task.low);
    return found == tiers_.copies.end() ? 0 : found->second;
}

// disks -------------------------------------------------------------------------------------------------------------------

void MasterState::add_disk(SegmentNumber segment) {
    const ClientNumber client = segments_[segment].client;
    clients_[client].disks.push_back(segment);
    tiers_.nodes.try_emplace(client);
}

void MasterState::remove_disk(SegmentNumber segment, ClientNumber client) {
    std::vector<SegmentNumber>& disks = clients_[client].disks;
    std::erase(disks, segment);
    const auto node = tiers_.nodes.find(client);
    if (!disks.empty() || node == tiers_.nodes.end()) return;
    for (const auto* queue : {&node->second.offloads, &node->second.promotions})
        for (const TierNode::Entry& entry : *queue)
            if (objects_.exists(entry.object) && objects_[entry.object].generation == entry.generation)
                objects_[entry.object].queued = false;
    tiers_.nodes.erase(node);
}

// queues ------------------------------------------------------------------------------------------------------------------

void MasterState::queue_offload(ObjectId id) {
    Object& object = objects_[id];
    if (!object.in_memory || object.on_disk || object.queued || object.copy != 0) return;
    for (size_t i = 0; i < object.replicas.size(); ++i) {
        const ClientNumber client = segments_[object.replicas[i].segment].client;
        if (disk_for(client, object.length) == 0) continue;
        TierNode& node = tiers_.nodes[client];
        if (node.offloads.size() >= options_.offload_queue_max) {
            ++tiers_.totals.offloads.no_room;
            continue;
        }
        node.offloads.push_back({.object = id, .generation = object.generation});
        object.queued = true;
        ++tiers_.totals.offloads.queued;
        return;
    }
}

void MasterState::queue_offload_of(ObjectId unit) {
    for (const ObjectId id : members(unit)) queue_offload(id);
}

void MasterState::note_disk_read(ObjectId id) {
    Object& object = objects_[id];
    TierTotals& totals = tiers_.totals;
    ++totals.reads;
    totals.read_bytes += object.length;
    if (!options_.promote || object.queued || object.copy != 0 || object.replicas.empty()) return;
    if (tiers_.reads.add(object.generation) < options_.promotion_threshold) {
        ++totals.too_seldom;
        return;
    }
    if (!may_promote()) {
        ++totals.too_full;
        return;
    }
    const auto node = tiers_.nodes.find(segments_[object.replicas[0].segment].client);
    if (node == tiers_.nodes.end()) return;
    if (node->second.promotions.size() >= options_.promotion_queue_max) {
        ++totals.promotions.no_room;
        return;
    }
    node->second.promotions.push_back({.object = id, .generation = object.generation});
    object.queued = true;
    ++totals.promotions.queued;
}

void MasterState::apply(const LookedAhead& change) {
    tenants_[objects_[change.object].tenant].order.look_at(change.object);
    if (!is_clean(change.object)) queue_offload_of(change.object);
}

void MasterState::apply(const BroughtBack& change) { tenants_[objects_[change.object].tenant].order.bring_back(change.object); }

void MasterState::apply(const TierTaken& change) {
    TierNode& node = tiers_.nodes.at(change.client);
    std::deque<TierNode::Entry>& queue = change.promotion ? node.promotions : node.offloads;
    const TierNode::Entry entry = queue.front();
    queue.pop_front();
    if (objects_.exists(entry.object) && objects_[entry.object].generation == entry.generation) objects_[entry.object].queued = false;
}

void MasterState::apply(const TierWindowSet& change) {
    tiers_.nodes.at(change.client).window = std::clamp(change.bytes, TierNode::kWindowMin, TierNode::kWindowMax);
}

void MasterState::apply(const TiersLooked& change) {
    const double seconds = std::max(std::chrono::duration<double>(change.now - tiers_.looked).count(), 1.0);
    const auto put = static_cast<double>(tiers_.put_bytes - tiers_.looked_bytes);
    tiers_.last_second_bytes = tiers_.looked == Time{} ? 0 : static_cast<uint64_t>(put / seconds);
    tiers_.looked = change.now;
    tiers_.looked_bytes = tiers_.put_bytes;
}

// copies ------------------------------------------------------------------------------------------------------------------

void MasterState::apply(const TierCopyStarted& change) {
    tiers_.last_task = std::max(tiers_.last_task, change.task.low & ~kTierTaskBit);
    Object& object = objects_[change.object];
    const CopyId id = copies_.take();
    Copy& copy = copies_[id];
    copy = {.task = change.task,
            .object = change.object,
            .source = change.source,
            .client = segments_[change.source].client,
            .started = change.now};
    copy.targets = take_ranges({change.target}, object.length, owner_word(OwnerKind::kCopy, id));
    charge(object.tenant, object.length, memory_replicas(copy.targets));
    object.copy = id;
    tiers_.copies.emplace(change.task.low, id);
    tiers_.nodes.at(copy.client).began(rounded(object.length), change.now);
    ++(segments_.is_disk(copy.source) ? tiers_.totals.promotions : tiers_.totals.offloads).started;
    if (observer_ == nullptr) return;
    observer_->range_planned_for_copy(*this, change.target.segment, id);
    observer_->copy_ordered(*this, id);
}

void MasterState::cancel_tier_copy(Object& object, Time now) {
    if (object.copy == 0 || !copies_[object.copy].of_tiers()) return;
    // Who carries it out may still write to the memory that a promotion has.
    cancel_copy(object.copy, StoreCode::kReplicaIsGone, {}, now + options_.put_release_timeout, now);
}

/// Its copy is gone already, and the object has what came of it.
void MasterState::end_tier_copy(const Copy& copy, uint64_t length, StoreCode code, Time now) {
    const bool promotion = segments_.is_disk(copy.source), well = code == StoreCode::kOk;
    TierTotals::Copies& totals = promotion ? tiers_.totals.promotions : tiers_.totals.offloads;
    tiers_.copies.erase(copy.task.low);
    tiers_.nodes.at(copy.client).ended(rounded(length), well, !promotion && !well && !is_innocent(code), now);
    if (well) {
        ++totals.ended;
        totals.ended_bytes += length;
    } else {
        ++(code == StoreCode::kRpcTimeout ? totals.expired : is_innocent(code) ? totals.cancelled : totals.failed);
    }
    if (promotion && well) {
        Object& object = objects_[copy.object];
        tiers_.reads.forget(object.generation);
        object.untold = object.group == 0 && object.on_disk && memory_replicas(object.replicas) == copy.targets.size();
    }
    if (promotion || !well) return;
    const ObjectId unit_id = unit(copy.object);
    if (objects_[unit_id].shelf == Shelf::kDirty && is_clean(unit_id)) tenants_[objects_[unit_id].tenant].order.bring_back(unit_id);
}

// what goes ---------------------------------------------------------------------------------------------------------------

void MasterState::apply(const MemoryReleased& change) {
    for (const ObjectId id : change.objects) {
        Object& object = objects_[id];
        if (!object.in_memory) continue;
        MC_CHECK(object.on_disk);
        const uint64_t bytes = rounded(object.length) * memory_replicas(object.replicas);
        totals_.evicted_bytes += bytes;
        tenants_[object.tenant].evicted_bytes += bytes;
        tiers_.totals.released_bytes += bytes;
        ++tiers_.totals.released;
        if (object.holds_memory()) soft_leased_.remove(object.soft_lease_end, rounded(object.length));
        for (size_t i = object.replicas.size(); i-- > 0;)
            if (const SegmentNumber segment = object.replicas[i].segment; !segments_.is_disk(segment))
                drop_replica(object, segment, change.now);
        update_order(id);
    }
}

void MasterState::apply(const DiskReplicasGone& change) {
    std::vector<GroupId> broken;
    if (Segment& segment = segments_[change.segment]; segment.reporting)
        segment.dropped.insert(change.unknown.begin(), change.unknown.end());
    for (const ObjectId id : change.objects) {
        Object& object = objects_[id];
        ++tiers_.totals.gone;
        if (object.copy != 0) {  // to there, perhaps, or from there
            const Copy& copy = copies_[object.copy];
            if (copy.source == change.segment || copy.targets.find(change.segment) < copy.targets.size())
                cancel_tier_copy(object, change.now);
        }
        const bool there = object.replicas.find(change.segment) < object.replicas.size();
        if (!there) continue;
        if (object.replicas.size() > 1) {
            drop_replica(object, change.segment, change.now);
            update_order(id);
            continue;
        }
        if (object.group != 0) broken.push_back(object.group);
        note_lost_value(object);
        drop_value(id, change.now);
    }
    drop_groups(broken, change.now);
}

}  // namespace mooncake::store
