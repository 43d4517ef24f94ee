// SPDX-License-Identifier: Apache-2.0
#include "store/protocol/messages_events.h"

#include <utility>

#include "store/protocol/message_parts.h"
#include "store/protocol/messages_objects.h"
#include "store/protocol/messages_tasks.h"

namespace mooncake::store {

using namespace parts;

void EventWriter::planned(const Planned& range) {
    planned_.push_back({.segment = range.segment,
                        .writer = range.writer,
                        .offset = range.offset,
                        .length = range.length,
                        .generation = range.generation,
                        .soft_pin_left = range.soft_pin_left,
                        .tenant_bytes = static_cast<uint32_t>(range.tenant.size()),
                        .key_bytes = static_cast<uint32_t>(range.key.size()),
                        .group_bytes = static_cast<uint32_t>(range.group.size()),
                        .data_type = range.data_type,
                        .hard_pin = range.hard_pin});
    planned_texts_.append(range.tenant).append(range.key).append(range.group);
}

void EventWriter::changed(std::string_view tenant, std::string_view key) {
    if (all_changed_) return;
    changed_.push_back({.tenant_bytes = static_cast<uint32_t>(tenant.size()), .key_bytes = static_cast<uint32_t>(key.size())});
    changed_texts_.append(tenant).append(key);
}

void EventWriter::all_changed() {
    all_changed_ = true;
    changed_.clear();
    changed_texts_.clear();
}

void EventWriter::add_changes_of(const EventWriter& other) {
    if (other.all_changed_) return all_changed();
    if (all_changed_) return;
    changed_.insert(changed_.end(), other.changed_.begin(), other.changed_.end());
    changed_texts_.append(other.changed_texts_);
}

bool EventWriter::empty() const noexcept { return items() == 0; }

size_t EventWriter::items() const noexcept {
    return planned_.size() + filled_.size() + dropped_.size() + changed_.size() + orders_.size() + behind_.size() + caught_up_.size() +
           (all_changed_ ? 1 : 0);
}

size_t EventWriter::bytes() const noexcept {
    return planned_.size() * sizeof(wire::FeedPlanned) + planned_texts_.size() + filled_.size() * sizeof(wire::FeedFilled) +
           dropped_.size() * sizeof(wire::FeedDropped) + changed_.size() * sizeof(wire::FeedChanged) + changed_texts_.size() +
           orders_bytes_ + behind_.size() * sizeof(wire::Behind) + caught_up_.size() * sizeof(wire::Id);
}

void EventWriter::clear() noexcept {
    planned_.clear();
    planned_texts_.clear();
    filled_.clear();
    dropped_.clear();
    changed_.clear();
    changed_texts_.clear();
    orders_.clear();
    orders_bytes_ = 0;
    behind_.clear();
    caught_up_.clear();
    all_changed_ = false;
}

namespace {

flatbuffers::Offset<wire::CopyOrder> order_to_wire(FlatBufferBuilder& builder, const CopyOrder& order) {
    const auto tenant = builder.CreateString(order.tenant);
    const auto key = builder.CreateString(order.key);
    const auto targets = structs_to_wire<wire::Replica>(
        builder, order.targets, [](const ReplicaLocation& replica) { return wire::Replica(replica.segment, replica.offset); });
    const wire::Id task = id_to_wire(order.task);
    const wire::Replica source(order.source.segment, order.source.offset);
    return wire::CreateCopyOrder(builder, &task, tenant, key, order.generation, order.length, order.checksum, &source, targets);
}

Result<CopyOrder> order_from_wire(const wire::CopyOrder& table) {
    MC_RETURN_IF_ERROR(bounded_count(table.targets(), kTaskTargetsMax, "targets"));
    if (table.source() == nullptr) return fail(Code::kCorrupt, "a copy order without a source");
    return CopyOrder{.task = id_from_wire<TaskId>(table.task()),
                     .tenant = std::string(view_of(table.tenant())),
                     .key = std::string(view_of(table.key())),
                     .generation = table.generation(),
                     .length = table.length(),
                     .checksum = table.checksum(),
                     .source = {.segment = table.source()->segment(), .offset = table.source()->offset()},
                     .targets = replicas_from_wire(table.targets())};
}

Result<std::vector<RangePlannedView>> planned_from_wire(const wire::FeedUpdate& message) {
    std::vector<RangePlannedView> ranges(count_of(message.planned()));
    TextReader texts(message.planned_texts());
    for (size_t i = 0; i < ranges.size(); ++i) {
        const auto item = struct_at(*message.planned(), i);
        RangePlannedView& range = ranges[i];
        range.segment = id_from_wire<SegmentId>(&item.segment());
        range.offset = item.offset();
        range.length = item.length();
        range.generation = item.generation();
        range.tenant = texts.next(item.tenant_bytes());
        range.key = texts.next(item.key_bytes());
        range.group = texts.next(item.group_bytes());
        range.data_type = static_cast<ObjectDataType>(item.data_type());
        range.hard_pin = item.hard_pin() != 0;
        range.soft_pin_left = duration_from_wire(item.soft_pin_left_ns());
        range.writer = id_from_wire<ClientId>(&item.writer());
    }
    MC_RETURN_IF_ERROR(texts.check());
    return ranges;
}

Result<std::vector<KeyChanged>> changed_from_wire(const wire::FeedUpdate& message) {
    std::vector<KeyChanged> keys(count_of(message.changed()));
    TextReader texts(message.changed_texts());
    for (size_t i = 0; i < keys.size(); ++i) {
        const auto item = struct_at(*message.changed(), i);
        keys[i].tenant = texts.next(item.tenant_bytes());
        keys[i].key = texts.next(item.key_bytes());
    }
    MC_RETURN_IF_ERROR(texts.check());
    return keys;
}

/// Nothing for an empty one: most updates have but one or two kinds of items.
template <typename Wire, typename Items, typename Convert>
flatbuffers::Offset<flatbuffers::Vector<const Wire*>> some_structs(FlatBufferBuilder& builder, const Items& items, Convert&& convert) {
    if (items.empty()) return {};
    return structs_to_wire<Wire>(builder, items, std::forward<Convert>(convert));
}

flatbuffers::Offset<flatbuffers::Vector<uint8_t>> some_text(FlatBufferBuilder& builder, const std::string& text) {
    if (text.empty()) return {};
    return builder.CreateVector(reinterpret_cast<const uint8_t*>(text.data()), text.size());
}

}  // namespace

std::vector<std::byte> EventWriter::encode(const Head& head) const {
    Builder builder;
    const auto planned = some_structs<wire::FeedPlanned>(*builder, planned_, [](const PlannedRow& row) {
        return wire::FeedPlanned(id_to_wire(row.segment), row.offset, row.length, row.generation, duration_to_wire(row.soft_pin_left),
                                 id_to_wire(row.writer), row.tenant_bytes, row.key_bytes, row.group_bytes,
                                 static_cast<uint8_t>(row.data_type), static_cast<uint8_t>(row.hard_pin));
    });
    const auto planned_texts = some_text(*builder, planned_texts_);
    const auto filled = some_structs<wire::FeedFilled>(*builder, filled_, [](const RangeFilled& range) {
        return wire::FeedFilled(id_to_wire(range.segment), range.generation, range.checksum);
    });
    const auto dropped = some_structs<wire::FeedDropped>(*builder, dropped_, [](const RangeDropped& range) {
        return wire::FeedDropped(id_to_wire(range.segment), range.generation, duration_to_wire(range.quarantine));
    });
    const auto changed = some_structs<wire::FeedChanged>(
        *builder, changed_, [](const ChangedRow& row) { return wire::FeedChanged(row.tenant_bytes, row.key_bytes); });
    const auto changed_texts = some_text(*builder, changed_texts_);
    const auto to_wire = [](const ClientId& client) { return id_to_wire(client); };
    const auto behind = some_structs<wire::Behind>(*builder, behind_, behind_to_wire);
    const auto caught_up = some_structs<wire::Id>(*builder, caught_up_, to_wire);
    flatbuffers::Offset<flatbuffers::Vector<flatbuffers::Offset<wire::CopyOrder>>> orders;
    if (!orders_.empty()) {
        std::vector<flatbuffers::Offset<wire::CopyOrder>> list;
        list.reserve(orders_.size());
        for (const CopyOrder& order : orders_) list.push_back(order_to_wire(*builder, order));
        orders = builder->CreateVector(list);
    }
    const wire::HistoryPoint now = point_to_wire(head.now);
    return builder.finish(wire::CreateFeedUpdate(*builder, head.sequence, head.acknowledge, head.reset, head.complete, planned,
                                                 planned_texts, filled, dropped, changed, changed_texts, all_changed_, orders, behind,
                                                 caught_up, head.now == HistoryPoint{} ? nullptr : &now));
}

std::vector<std::byte> encode_event_update(const EventUpdate& update) {
    EventWriter writer;
    for (const RangePlanned& range : update.planned) writer.planned(RangePlannedView::of(range));
    for (const RangeFilled& range : update.filled) writer.filled(range);
    for (const RangeDropped& range : update.dropped) writer.dropped(range);
    for (const KeyChanged& key : update.changed) writer.changed(key.tenant, key.key);
    if (update.all_changed) writer.all_changed();
    for (const CopyOrder& order : update.orders) writer.order(order);
    for (const Behind& behind : update.behind) writer.behind(behind);
    for (const ClientId& client : update.caught_up) writer.caught_up(client);
    return writer.encode({.sequence = update.sequence,
                          .acknowledge = update.acknowledge,
                          .reset = update.reset,
                          .complete = update.complete,
                          .now = update.now});
}

Result<EventUpdate> decode_event_update(std::span<const std::byte> body) {
    MC_ASSIGN_OR_RETURN(const EventView view, decode_event_view(body));
    return view.owned();
}

Result<EventView> decode_event_view(std::span<const std::byte> body) {
    MC_ASSIGN_OR_RETURN(auto message, VerifiedMessage<wire::FeedUpdate>::parse(body, "event update"));
    EventView update;
    update.sequence = message->sequence();
    update.acknowledge = message->acknowledge();
    update.reset = message->reset();
    update.complete = message->complete();
    update.all_changed = message->all_changed();
    MC_ASSIGN_OR_RETURN(update.planned, planned_from_wire(*message));
    MC_ASSIGN_OR_RETURN(update.changed, changed_from_wire(*message));
    update.filled.reserve(count_of(message->filled()));
    for (size_t i = 0; i < count_of(message->filled()); ++i) {
        const auto item = struct_at(*message->filled(), i);
        update.filled.push_back(
            {.segment = id_from_wire<SegmentId>(&item.segment()), .generation = item.generation(), .checksum = item.checksum()});
    }
    update.dropped.reserve(count_of(message->dropped()));
    for (size_t i = 0; i < count_of(message->dropped()); ++i) {
        const auto item = struct_at(*message->dropped(), i);
        update.dropped.push_back({.segment = id_from_wire<SegmentId>(&item.segment()),
                                  .generation = item.generation(),
                                  .quarantine = duration_from_wire(item.rest_ns())});
    }
    update.orders.reserve(count_of(message->orders()));
    for (size_t i = 0; i < count_of(message->orders()); ++i) {
        MC_ASSIGN_OR_RETURN(update.orders.emplace_back(), order_from_wire(*message->orders()->Get(static_cast<flatbuffers::uoffset_t>(i))));
    }
    update.behind = behind_from_wire(message->behind());
    update.now = point_from_wire(message->now());
    update.caught_up = ids_from_wire<ClientId>(message->caught_up());
    update.copy = message.take_copy();
    return update;
}

void set_event_sequence(std::span<std::byte> body, uint64_t sequence) {
    auto* table = flatbuffers::GetMutableRoot<flatbuffers::Table>(body.data());
    MC_CHECK(table->SetField<uint64_t>(wire::FeedUpdate::VT_SEQUENCE, sequence, 0));
}

std::vector<std::byte> encode_acknowledgement(const Acknowledgement& acknowledgement) {
    Builder builder;
    const wire::Id client = id_to_wire(acknowledgement.client);
    return builder.finish(wire::CreateAcknowledgeRequest(*builder, &client, acknowledgement.sequence));
}

Result<Acknowledgement> decode_acknowledgement(std::span<const std::byte> body) {
    MC_ASSIGN_OR_RETURN(const auto message, VerifiedMessage<wire::AcknowledgeRequest>::parse(body, "acknowledgement"));
    return Acknowledgement{.client = id_from_wire<ClientId>(message->client()), .sequence = message->sequence()};
}

}  // namespace mooncake::store
