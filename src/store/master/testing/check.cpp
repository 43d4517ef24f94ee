// SPDX-License-Identifier: Apache-2.0
#include "store/master/testing/check.h"

#include <map>
#include <vector>

namespace mooncake::store {

namespace {

#define MC_AGREE(condition, ...) \
    if (!(condition)) return fail(Code::kInternal, __VA_ARGS__)

class Checker {
public:
    explicit Checker(const MasterState& state) : state_(state) {}

    Result<> run() {
        MC_RETURN_IF_ERROR(check_objects());
        MC_RETURN_IF_ERROR(check_writes());
        MC_RETURN_IF_ERROR(check_copies());
        MC_RETURN_IF_ERROR(check_quarantine());
        MC_RETURN_IF_ERROR(check_segments());
        MC_RETURN_IF_ERROR(check_groups());
        MC_RETURN_IF_ERROR(check_tenants());
        return check_clients();
    }

private:
    /// Every owner claims its blocks; afterwards each used block must have been claimed exactly once.
    Result<> claim(const Replica& replica, uint64_t length, OwnerKind kind, uint32_t number) {
        MC_AGREE(state_.segments().exists(replica.segment), "owner {} {} lies in segment {} which is not there", static_cast<int>(kind),
                 number, replica.segment);
        const RangeAllocator& allocator = state_.segments()[replica.segment].allocator;
        MC_AGREE(!allocator.is_free(replica.block), "a range of {} {} is free", static_cast<int>(kind), number);
        MC_AGREE(allocator.owner(replica.block) == owner_word(kind, number), "a range of {} {} has another owner", static_cast<int>(kind),
                 number);
        MC_AGREE(allocator.offset(replica.block) == replica.offset, "a range of {} {} lies elsewhere", static_cast<int>(kind), number);
        MC_AGREE(allocator.length(replica.block) == state_.rounded(length), "a range of {} {} has another length", static_cast<int>(kind),
                 number);
        ++claimed_[replica.segment];
        return {};
    }

    Result<> check_objects() {
        size_t seen = 0, values = 0;
        for (ObjectId id = 1; id < state_.objects().limit(); ++id) {
            if (!state_.objects().exists(id)) continue;
            ++seen;
            const Object& object = state_.objects()[id];
            MC_AGREE(state_.objects().find(object.tenant, object.key()) == id, "object {} is not found by its key", id);
            MC_AGREE(object.has_value() || object.write != 0, "object {} is empty", id);
            MC_AGREE(object.has_value() == !object.replicas.empty(), "object {} has a value without replicas, or the reverse", id);
            MC_AGREE(object.generation < state_.next_generation(), "object {} is of the future", id);
            for (size_t i = 0; i < object.replicas.size(); ++i) {
                MC_RETURN_IF_ERROR(claim(object.replicas[i], object.length, OwnerKind::kObject, id));
                MC_AGREE(object.replicas.find(object.replicas[i].segment) == i, "object {} is twice in segment {}", id,
                         object.replicas[i].segment);
            }
            MC_AGREE(object.write == 0 || state_.write(object.write).object == id, "the write of object {} is another's", id);
            const size_t in_memory = state_.memory_replicas(object.replicas);
            charged_[object.tenant] += state_.rounded(object.length) * in_memory;
            MC_AGREE(object.in_memory == (in_memory != 0) && object.on_disk == (in_memory != object.replicas.size()),
                     "object {} lies elsewhere than it says", id);
            MC_AGREE(!object.untold || (object.in_memory && object.on_disk), "object {} is where somebody was told of", id);
            on_disk_ += object.on_disk;
            ++objects_[object.tenant];
            values += object.has_value() ? 1 : 0;
            if (object.writer != 0) ++written_[object.writer];
            const bool blocked = object.hard_pin || object.write != 0 || state_.has_task(object) || !object.has_value();
            MC_AGREE(object.blocked == blocked, "object {} is {}blocked by mistake", id, blocked ? "not " : "");
            const Group* group = object.group == 0 ? nullptr : &state_.groups()[object.group];
            const bool evictable = group == nullptr ? !blocked && object.in_memory
                                                    : group->blocked == 0 && group->in_memory != 0 && state_.unit(id) == id;
            MC_AGREE(!object.looked_at || object.shelf == Shelf::kOrder, "object {} was looked at by mistake", id);
            if (object.looked_at) seen_[object.tenant] += object.length;
            MC_AGREE(evictable == (object.shelf != Shelf::kNone), "object {} is on shelf {} by mistake", id,
                     static_cast<int>(object.shelf));
            if (evictable) ++ordered_[object.tenant];
        }
        MC_AGREE(seen == state_.objects().size(), "{} objects seen of {}", seen, state_.objects().size());
        MC_AGREE(values == state_.values(), "{} values seen of {}", values, state_.values());
        MC_AGREE(on_disk_ == state_.tiers().on_disk_values, "{} values seen on disks of {}", on_disk_, state_.tiers().on_disk_values);
        return {};
    }

    Result<> check_writes() {
        size_t seen = 0;
        Time last{};
        for (WriteId id = state_.oldest_write(); id != 0; id = state_.write(id).age.next, ++seen) {
            const Write& write = state_.write(id);
            MC_AGREE(write.started >= last, "write {} is older than the one before", id);
            last = write.started;
            MC_AGREE(state_.objects().exists(write.object) && state_.objects()[write.object].write == id, "write {} has no object", id);
            MC_AGREE(state_.clients()[write.client].alive, "write {} has no living writer", id);
            ++writes_[write.client];
            MC_AGREE(!write.replicas.empty(), "write {} has no range", id);
            for (size_t i = 0; i < write.replicas.size(); ++i)
                MC_RETURN_IF_ERROR(claim(write.replicas[i], write.length, OwnerKind::kWrite, id));
            charged_[state_.objects()[write.object].tenant] += state_.rounded(write.length) * write.replicas.size();
        }
        MC_AGREE(seen == state_.write_count(), "{} writes seen of {}", seen, state_.write_count());
        return {};
    }

    Result<> check_copies() {
        const TaskTable& tasks = state_.tasks();
        for (TaskNumber number = tasks.processing().first(); number != 0; number = tasks[number].order.next) {
            const CopyId id = tasks[number].copy;
            const Copy& copy = state_.copy(id);
            MC_AGREE(copy.task == tasks[number].id, "copy {} belongs to another task", id);
            MC_AGREE(state_.objects().exists(copy.object) && state_.objects()[copy.object].copy == id, "copy {} has no object", id);
            const Object& object = state_.objects()[copy.object];
            MC_AGREE(object.replicas.find(copy.source) < object.replicas.size(), "copy {} has no source", id);
            MC_AGREE(!copy.targets.empty(), "copy {} has no target", id);
            for (size_t i = 0; i < copy.targets.size(); ++i)
                MC_RETURN_IF_ERROR(claim(copy.targets[i], object.length, OwnerKind::kCopy, id));
            charged_[object.tenant] += state_.rounded(object.length) * copy.targets.size();
            ++copies_;
        }
        MC_RETURN_IF_ERROR(check_tier_copies());
        for (ObjectId id = 1; id < state_.objects().limit(); ++id) copies_ -= state_.objects()[id].copy != 0;
        MC_AGREE(copies_ == 0, "an object is being copied without a task");
        return {};
    }

    Result<> check_tier_copies() {
        std::map<ClientNumber, uint64_t> under_way;
        for (const auto& [task, id] : state_.tiers().copies) {
            const Copy& copy = state_.copy(id);
            MC_AGREE(copy.task.low == task && copy.of_tiers(), "copy {} has another number", id);
            MC_AGREE(state_.objects().exists(copy.object) && state_.objects()[copy.object].copy == id, "copy {} has no object", id);
            const Object& object = state_.objects()[copy.object];
            MC_AGREE(object.replicas.find(copy.source) < object.replicas.size(), "copy {} has no source", id);
            MC_AGREE(copy.targets.size() == 1, "copy {} has {} targets", id, copy.targets.size());
            const SegmentNumber target = copy.targets[0].segment;
            MC_RETURN_IF_ERROR(claim(copy.targets[0], object.length, OwnerKind::kCopy, id));
            MC_AGREE(state_.segments().is_disk(copy.source) != state_.segments().is_disk(target) &&
                         state_.segments()[copy.source].client == copy.client && state_.segments()[target].client == copy.client,
                     "copy {} is not between the tiers of one node", id);
            charged_[object.tenant] += state_.rounded(object.length) * state_.memory_replicas(copy.targets);
            under_way[copy.client] += state_.rounded(object.length);
            ++copies_;
        }
        for (const auto& [client, node] : state_.tiers().nodes) {
            MC_AGREE(!state_.clients()[client].disks.empty(), "client {} has no disk", client);
            MC_AGREE(node.under_way == under_way[client], "client {} has {} bytes under way, not {}", client, under_way[client],
                     node.under_way);
            for (const auto* queue : {&node.offloads, &node.promotions})
                for (const TierNode::Entry& entry : *queue)
                    if (state_.objects().exists(entry.object) && state_.objects()[entry.object].generation == entry.generation)
                        MC_AGREE(state_.objects()[entry.object].queued, "object {} waits and does not know it", entry.object);
        }
        return {};
    }

    Result<> check_quarantined(QuarantineId id, const Quarantine::Quarantined& quarantine, Time last) {
        const uint64_t bytes = state_.segments().is_disk(quarantine.segment) ? 0 : state_.rounded(quarantine.length);
        MC_AGREE(quarantine.until >= last && quarantine.bytes == bytes, "quarantine {} contradicts itself", id);
        const RangeAllocator& allocator = state_.segments()[quarantine.segment].allocator;
        MC_RETURN_IF_ERROR(claim({allocator.offset(quarantine.block), quarantine.segment, quarantine.block}, quarantine.length,
                                 OwnerKind::kQuarantined, id));
        in_quarantine_[quarantine.segment] += quarantine.bytes;
        if (quarantine.writer != 0) ++quarantined_[quarantine.writer];
        return {};
    }

    Result<> check_quarantine() {
        uint64_t bytes = 0;
        Result<> checked;
        Time last{};
        state_.quarantine().for_each([&](QuarantineId id, const Quarantine::Quarantined& quarantine) {
            if (checked) checked = check_quarantined(id, quarantine, last);
            last = quarantine.until;
            bytes += quarantine.bytes;
        });
        MC_RETURN_IF_ERROR(std::move(checked));
        MC_AGREE(bytes == state_.quarantine().bytes(), "{} bytes are in quarantine, not {}", bytes, state_.quarantine().bytes());
        return {};
    }

    Result<> check_segments() {
        uint64_t capacity = 0, used = 0, disk_capacity = 0, disk_used = 0;
        for (const SegmentNumber number : state_.segments().numbers()) {
            const Segment& segment = state_.segments()[number];
            MC_AGREE(segment.allocator.consistent(), "the allocator of segment {} contradicts itself", number);
            MC_AGREE(segment.allocator.used_blocks() == claimed_[number], "segment {} has {} used ranges, {} of them claimed", number,
                     segment.allocator.used_blocks(), claimed_[number]);
            MC_AGREE(segment.quarantined_bytes == in_quarantine_[number], "segment {} has another number of bytes in quarantine", number);
            MC_AGREE(state_.clients()[segment.client].alive, "segment {} has no living owner", number);
            MC_AGREE(segment.leaving == state_.clients().leaving(segment.client), "segment {} leaves without its owner", number);
            if (segment.view_position != UINT32_MAX) {
                const SegmentView& view = state_.segments().view().segments[segment.view_position];
                MC_AGREE(view.segment == number && view.free == segment.allocator.free_bytes(), "segment {} is not seen as it is", number);
            }
            MC_AGREE(!segment.is_disk() || segment.view_position == UINT32_MAX, "disk {} is among the memory", number);
            (segment.is_disk() ? disk_capacity : capacity) += segment.allocator.capacity();
            (segment.is_disk() ? disk_used : used) += segment.allocator.used_bytes();
        }
        MC_AGREE(capacity == state_.segments().capacity() && used == state_.segments().used_bytes() &&
                     disk_capacity == state_.segments().disk_capacity() && disk_used == state_.segments().disk_used_bytes(),
                 "the totals of the segments are wrong");
        return {};
    }

    Result<> check_groups() {
        size_t seen = 0;
        for (GroupId id = 1; id < state_.groups().limit(); ++id) {
            const Group& group = state_.groups()[id];
            if (group.members.empty()) continue;
            ++seen;
            uint32_t writing = 0, blocked = 0, in_memory = 0, dirty = 0;
            uint64_t bytes = 0;
            Time leased{}, soft_leased{}, pinned{};
            for (size_t i = 0; i < group.members.size(); ++i) {
                const Object& object = state_.objects()[group.members[i]];
                MC_AGREE(object.group == id && object.group_position == i && object.tenant == group.tenant, "group {} has a wrong member",
                         id);
                writing += !object.has_value();
                blocked += object.blocked;
                in_memory += object.in_memory;
                dirty += object.in_memory && !object.on_disk;
                bytes += object.has_value() ? state_.rounded(object.length) : 0;
                leased = std::max(leased, object.lease_end);
                soft_leased = std::max(soft_leased, object.soft_lease_end);
                pinned = std::max(pinned, object.soft_pin_end);
            }
            const auto agrees = [](const GroupHold& hold, Time latest) {
                return hold.stale ? hold.latest >= latest : hold.latest == latest;
            };
            MC_AGREE(agrees(group.leased, leased) && agrees(group.soft_leased, soft_leased) && agrees(group.soft_pinned, pinned),
                     "group {} is held otherwise than its members", id);
            MC_AGREE(bytes == group.bytes, "group {} has {} bytes, not {}", id, group.bytes, bytes);
            MC_AGREE(in_memory == group.in_memory && dirty == group.dirty, "group {} lies elsewhere than its members", id);
            MC_AGREE(writing == group.writing && blocked == group.blocked, "group {} counts its members wrong", id);
        }
        MC_AGREE(seen == state_.groups().size(), "{} groups seen of {}", seen, state_.groups().size());
        return {};
    }

    Result<> check_tenants() {
        for (TenantNumber number = 1; number < state_.tenants().limit(); ++number) {
            if (!state_.tenants().exists(number)) continue;
            const Tenant& tenant = state_.tenants()[number];
            MC_AGREE(tenant.charged_bytes == charged_[number], "tenant {} is charged {} bytes, not {}", tenant.name, tenant.charged_bytes,
                     charged_[number]);
            MC_AGREE(tenant.objects == objects_[number], "tenant {} has another number of objects", tenant.name);
            MC_AGREE(tenant.order.size() == ordered_[number], "tenant {} has {} entries in its order, not {}", tenant.name,
                     tenant.order.size(), ordered_[number]);
            MC_AGREE(tenant.order.policy().seen_bytes() == seen_[number], "tenant {} has looked at {} bytes, not {}", tenant.name,
                     seen_[number], tenant.order.policy().seen_bytes());
        }
        return {};
    }

    Result<> check_clients() {
        for (ClientNumber number = 1; number < state_.clients().limit(); ++number) {
            const Client& client = state_.clients()[number];
            MC_AGREE(
                client.objects == written_[number] && client.quarantined == quarantined_[number] && client.writes.size() == writes_[number],
                "client {} is referred to otherwise than it counts", number);
            size_t quarantined = 0;
            for (QuarantineId id = state_.quarantine().first_of(number); id != 0;
                 id = state_.quarantine().next_of_writer(id), ++quarantined)
                MC_AGREE(state_.quarantine()[id].writer == number, "quarantine {} is listed under client {}", id, number);
            MC_AGREE(quarantined == client.quarantined, "client {} has {} quarantined listed of {}", number, quarantined,
                     client.quarantined);
            for (WriteId id = client.writes.first(); id != 0; id = state_.write(id).of_client.next)
                MC_AGREE(state_.write(id).client == number, "write {} is listed under client {}", id, number);
            for (const SegmentNumber segment : client.segments)
                MC_AGREE(state_.segments().exists(segment) && state_.segments()[segment].client == number,
                         "client {} does not own segment {}", number, segment);
        }
        return {};
    }

    const MasterState& state_;
    size_t copies_ = 0, on_disk_ = 0;
    std::map<TenantNumber, uint64_t> seen_;
    std::map<SegmentNumber, size_t> claimed_;
    std::map<SegmentNumber, uint64_t> in_quarantine_;
    std::map<TenantNumber, uint64_t> charged_;
    std::map<TenantNumber, size_t> objects_, ordered_;
    std::map<ClientNumber, uint32_t> written_, quarantined_;
    std::map<ClientNumber, size_t> writes_;
};

#undef MC_AGREE

int64_t ticks(Time time) { return time.time_since_epoch().count(); }

void dump_replicas(const ReplicaList& replicas, std::string& to) {
    for (size_t i = 0; i < replicas.size(); ++i) to += format_text(" {}+{}", replicas[i].segment, replicas[i].offset);
}

void dump_objects(const MasterState& state, std::string& to) {
    for (ObjectId id = 1; id < state.objects().limit(); ++id) {
        if (!state.objects().exists(id)) continue;
        const Object& object = state.objects()[id];
        to += format_text(
            "object {} tenant {} key {} generation {} length {} checksum {} lease {} soft_lease {} pin {} {} writer {} group {} write {} "
            "copy "
            "{} type {} shelf {} moved {} untold {} at",
            id, object.tenant, object.key(), object.generation, object.length, object.checksum, ticks(object.lease_end),
            ticks(object.soft_lease_end), ticks(object.soft_pin_end), object.hard_pin, object.writer, object.group, object.write,
            object.copy, static_cast<int>(object.data_type), static_cast<int>(object.shelf), object.moved_by + 0, object.untold + 0);
        dump_replicas(object.replicas, to);
        to += '\n';
    }
    for (WriteId id = state.oldest_write(); id != 0; id = state.write(id).age.next) {
        const Write& write = state.write(id);
        to += format_text("write {} object {} client {} request {} generation {} length {} started {} at", id, write.object, write.client,
                          write.request_id, write.generation, write.length, ticks(write.started));
        dump_replicas(write.replicas, to);
        to += '\n';
    }
}

void dump_tasks(const MasterState& state, std::string& to) {
    const TaskTable& tasks = state.tasks();
    for (const IndexList* list : {&tasks.pending(), &tasks.processing(), &tasks.finished(), &tasks.finished_of_drains()}) {
        for (TaskNumber number = list->first(); number != 0; number = tasks[number].order.next) {
            const Task& task = tasks[number];
            to += format_text("task {} {} {} key {} from {} copy {} client {} attempts {} until {} {} at", task.id.to_string(),
                              static_cast<int>(task.type), static_cast<int>(task.status), task.key, task.source, task.copy,
                              task.client.to_string(), task.attempts, ticks(task.not_before), task.message);
            if (task.copy != 0) dump_replicas(state.copy(task.copy).targets, to);
            to += '\n';
        }
    }
    for (const Drain& drain : state.drains())
        to += format_text("drain {} {} active {} succeeded {} failed {} blocked {} bytes {} at {} {} seen {} hopeless {} tried {} {} {}\n",
                          drain.id.to_string(), static_cast<int>(drain.status), drain.active, drain.succeeded, drain.failed, drain.blocked,
                          drain.migrated_bytes, drain.position, drain.next_block, drain.seen, drain.hopeless, drain.tries.size(),
                          static_cast<int>(drain.last_failure), drain.message);
}

void dump_tiers(const MasterState& state, std::string& to) {
    const TierTable& tiers = state.tiers();
    for (const auto& [task, id] : tiers.copies) {
        to += format_text("tier copy {} object {} from {} at", task & ~kTierTaskBit, state.copy(id).object, state.copy(id).source);
        dump_replicas(state.copy(id).targets, to);
        to += '\n';
    }
    for (const auto& [client, node] : tiers.nodes) {
        to += format_text("tier node {} under way {} of {} failures {} paused {} waiting", client, node.under_way, node.window,
                          node.failures, ticks(node.paused_until));
        for (const auto* queue : {&node.offloads, &node.promotions})
            for (const TierNode::Entry& entry : *queue) to += format_text(" {}", entry.object);
        to += '\n';
    }
    to += format_text("tiers next {} on disk {} reads {}\n", tiers.last_task, tiers.on_disk_values, tiers.totals.reads);
}

void dump_order(const MasterState& state, std::string& to) {
    for (TenantNumber number = 1; number < state.tenants().limit(); ++number) {
        if (!state.tenants().exists(number)) continue;
        const Tenant& tenant = state.tenants()[number];
        to += format_text("tenant {} {} quota {} {} charged {} order", number, tenant.name, tenant.requested_quota.value_or(0),
                          tenant.effective_quota, tenant.charged_bytes);
        const EvictionPolicy& policy = tenant.order.policy();
        for (size_t c = 0; c < EvictionPolicy::kClasses; ++c)
            for (ObjectId id = policy.coldest(c); id != 0; id = policy.next_coldest(id)) to += format_text(" {}", id);
        for (const Shelf shelf : {Shelf::kSoftLeased, Shelf::kLeased, Shelf::kSoftPinned, Shelf::kDirty}) {
            to += " |";
            for (ObjectId id = tenant.order.first_aside(shelf); id != 0; id = state.objects()[id].order.next) to += format_text(" {}", id);
        }
        to += '\n';
    }
}

}  // namespace

Result<> check_state(const MasterState& state) { return Checker(state).run(); }

std::string dump_state(const MasterState& state) {
    std::string text;
    dump_objects(state, text);
    dump_tasks(state, text);
    dump_tiers(state, text);
    dump_order(state, text);
    for (GroupId id = 1; id < state.groups().limit(); ++id) {
        if (state.groups()[id].members.empty()) continue;
        text += format_text("group {} {}", id, state.groups()[id].name);
        for (const ObjectId member : state.groups()[id].members) text += format_text(" {}", member);
        text += '\n';
    }
    for (ClientNumber number = 1; number < state.clients().limit(); ++number) {
        const Client& client = state.clients()[number];
        if (client.id)
            text += format_text("client {} {} {} {} follows {} expires {} stream down {} objects {} quarantined {} life {} {}\n", number,
                                client.id.to_string(), client.alive, client.attached, client.follows, ticks(client.expires),
                                ticks(client.stream_down_since), client.objects, client.quarantined, client.life.value, client.restarted);
    }
    for (const SegmentNumber number : state.segments().numbers()) {
        const Segment& segment = state.segments()[number];
        text += format_text("segment {} {} client {} status {} reporting {} {} until {} closed {} suspect {} used {} quarantined {}\n",
                            number, segment.spec.name, segment.client, segment_status_name(segment.status), segment.reporting,
                            segment.busy.size(), ticks(segment.status_end), ticks(segment.closed_until), ticks(segment.suspect_until),
                            segment.allocator.used_bytes(), segment.quarantined_bytes);
    }
    state.quarantine().for_each([&](QuarantineId id, const Quarantine::Quarantined& quarantine) {
        text += format_text("quarantine {} {} {}+{} {} generation {} writer {}\n", id, ticks(quarantine.until), quarantine.segment,
                            state.segments()[quarantine.segment].allocator.offset(quarantine.block), quarantine.length,
                            quarantine.generation, quarantine.writer);
    });
    return text + format_text("next generation {} event {} tombstones {} absent {} {} {} tellers {}\n", state.next_generation(),
                              ticks(state.next_event()), state.tombstones().size(), state.absent().size(), state.absent().earlier_life(),
                              state.absent().believes_earlier_lives(), state.tellers().size());
}

}  // namespace mooncake::store
