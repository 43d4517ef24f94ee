// SPDX-License-Identifier: Apache-2.0
#include "store/master/range_events.h"

#include <algorithm>
#include <utility>

namespace mooncake::store {

namespace {

constexpr size_t kRangeBytes = 160;  // of an update, at most: planned, and filled or dropped

Duration left(Time end, Time now) { return std::max(end - now, Duration::zero()); }

uint64_t offset_on(const ReplicaList& replicas, SegmentNumber segment) {
    const size_t position = replicas.find(segment);
    MC_CHECK(position < replicas.size());
    return replicas[position].offset;
}

/// Without what is different for values, writes and copies.
RangePlanned event_of_object(const MasterState& state, SegmentNumber segment, const Object& object) {
    return {.segment = state.segments()[segment].spec.id,
            .tenant = state.tenants()[object.tenant].name,
            .key = std::string(object.key()),
            .group = object.group == 0 ? std::string() : state.groups()[object.group].name};
}

/// Of a value, or of a copy that becomes one: without the place and the writer.
RangePlanned event_of_content(const MasterState& state, SegmentNumber segment, const Object& object, Time now) {
    RangePlanned event = event_of_object(state, segment, object);
    event.length = object.length;
    event.generation = object.generation;
    event.data_type = object.data_type;
    event.hard_pin = object.hard_pin;
    event.soft_pin_left = left(object.soft_pin_end, now);
    return event;
}

RangePlanned event_of_quarantined(const MasterState& state, const UsedRange& range, SegmentNumber segment) {
    const ClientNumber writer = state.quarantine()[range.number].writer;
    return {.segment = state.segments()[segment].spec.id,
            .offset = range.offset,
            .length = range.length,
            .generation = range.generation,
            .writer = writer != 0 ? state.clients()[writer].id : ClientId{}};
}

}  // namespace

RangePlanned event_of_write(const MasterState& state, SegmentNumber segment, WriteId write_id) {
    const Write& write = state.write(write_id);
    const Object& object = state.objects()[write.object];
    RangePlanned event = event_of_object(state, segment, object);
    event.offset = offset_on(write.replicas, segment);
    event.length = write.length;
    event.generation = write.generation;
    event.data_type = write.data_type;
    event.hard_pin = object.hard_pin || write.hard_pin;
    if (write.soft_pin == SoftPinAction::kEnable) event.soft_pin_left = write.soft_pin_ttl;
    if (write.soft_pin == SoftPinAction::kPreserve) event.soft_pin_left = left(object.soft_pin_end, write.started);
    if (write.regroups) event.group = write.group;
    event.writer = state.clients()[write.client].id;
    return event;
}

RangePlanned event_of_value(const MasterState& state, SegmentNumber segment, ObjectId id, Time now) {
    const Object& object = state.objects()[id];
    RangePlanned event = event_of_content(state, segment, object, now);
    event.offset = offset_on(object.replicas, segment);
    if (object.writer != 0) event.writer = state.clients()[object.writer].id;
    return event;
}

RangePlanned event_of_copy(const MasterState& state, SegmentNumber segment, CopyId id, Time now) {
    const Copy& copy = state.copy(id);
    RangePlanned event = event_of_content(state, segment, state.objects()[copy.object], now);
    event.offset = offset_on(copy.targets, segment);
    event.writer = state.clients()[copy.client].id;
    return event;
}

CopyOrder order_of(const MasterState& state, CopyId id) {
    const Copy& copy = state.copy(id);
    const Object& object = state.objects()[copy.object];
    CopyOrder order{.task = copy.task,
                    .tenant = state.tenants()[object.tenant].name,
                    .key = std::string(object.key()),
                    .generation = object.generation,
                    .length = object.length,
                    .checksum = object.checksum,
                    .source = {.segment = copy.source, .offset = offset_on(object.replicas, copy.source)},
                    .targets = {}};
    for (size_t i = 0; i < copy.targets.size(); ++i) order.targets.push_back({copy.targets[i].segment, copy.targets[i].offset});
    return order;
}

bool tell_orders(const MasterState& state, const ClientId& client, OrderCursor& cursor, size_t bytes_max, EventUpdate& to) {
    const TaskTable& tasks = state.tasks();
    if (!std::exchange(cursor.begun, true))
        for (TaskNumber number = tasks.processing().first(); number != 0; number = tasks[number].order.next)
            if (tasks[number].client == client) cursor.left.push_back(tasks[number].id);
    size_t bytes = 0;
    for (; !cursor.left.empty() && bytes < bytes_max; cursor.left.pop_front()) {
        const TaskNumber number = tasks.find(cursor.left.front());
        if (number == 0 || tasks[number].copy == 0 || tasks[number].client != client) continue;  // it has ended meanwhile
        bytes += wire_bytes(to.orders.emplace_back(order_of(state, tasks[number].copy)));
    }
    // Those between tiers, in the order of their numbers.
    const auto& copies = state.tiers().copies;
    auto next = copies.upper_bound(cursor.last_tier_task);
    for (; next != copies.end() && bytes < bytes_max; ++next) {
        cursor.last_tier_task = next->first;
        if (state.clients()[state.copy(next->second).client].id == client)
            bytes += wire_bytes(to.orders.emplace_back(order_of(state, next->second)));
    }
    return !cursor.left.empty() || next != copies.end();
}

bool for_each_range(const MasterState& state, SegmentNumber segment, RangeCursor& cursor, size_t most,
                    const std::function<void(const UsedRange&)>& visit) {
    if (!state.segments().exists(segment)) return false;
    const RangeAllocator& allocator = state.segments()[segment].allocator;
    for (; most != 0 && cursor.next < allocator.limit(); --most, ++cursor.next) {
        const RangeAllocator::Block block = cursor.next;
        if (!allocator.is_used(block)) continue;
        const uint64_t owner = allocator.owner(block);
        UsedRange range{.kind = owner_kind(owner), .number = owner_number(owner), .offset = allocator.offset(block)};
        switch (range.kind) {
            case OwnerKind::kObject:
                range.length = state.objects()[range.number].length;
                range.generation = state.objects()[range.number].generation;
                break;
            case OwnerKind::kWrite:
                range.length = state.write(range.number).length;
                range.generation = state.write(range.number).generation;
                break;
            case OwnerKind::kCopy:
                range.length = state.objects()[state.copy(range.number).object].length;
                range.generation = state.objects()[state.copy(range.number).object].generation;
                break;
            case OwnerKind::kQuarantined:
                range.length = state.quarantine()[range.number].length;
                range.generation = state.quarantine()[range.number].generation;
                break;
        }
        visit(range);
    }
    return cursor.next < allocator.limit();
}

bool tell_ranges(const MasterState& state, SegmentNumber segment, RangeCursor& cursor, PartLimits limits, Time now, EventUpdate& to) {
    size_t bytes = 0;
    const std::function<void(const UsedRange&)> tell = [&](const UsedRange& range) {
        switch (range.kind) {
            case OwnerKind::kObject:
                to.planned.push_back(event_of_value(state, segment, range.number, now));
                to.filled.push_back({.segment = to.planned.back().segment,
                                     .generation = range.generation,
                                     .checksum = state.objects()[range.number].checksum});
                break;
            case OwnerKind::kWrite: to.planned.push_back(event_of_write(state, segment, range.number)); break;
            case OwnerKind::kCopy: to.planned.push_back(event_of_copy(state, segment, range.number, now)); break;
            case OwnerKind::kQuarantined:
                if (state.quarantine()[range.number].replaced)
                    return;  // its node may have to tell of it again: it hears later that it is gone
                to.planned.push_back(event_of_quarantined(state, range, segment));
                to.dropped.push_back({.segment = to.planned.back().segment,
                                      .generation = range.generation,
                                      .quarantine = left(state.quarantine()[range.number].until, now)});
                break;
        }
        const RangePlanned& told = to.planned.back();
        bytes += kRangeBytes + told.tenant.size() + told.key.size() + told.group.size();
    };
    bool more = true;
    for (; more && limits.blocks != 0 && bytes < limits.bytes; --limits.blocks) more = for_each_range(state, segment, cursor, 1, tell);
    return more;
}

}  // namespace mooncake::store
