// SPDX-License-Identifier: Apache-2.0
#include "store/protocol/events.h"

namespace mooncake::store {

RangePlannedView RangePlannedView::of(const RangePlanned& range) {
    return {.segment = range.segment,
            .offset = range.offset,
            .length = range.length,
            .generation = range.generation,
            .tenant = range.tenant,
            .key = range.key,
            .group = range.group,
            .data_type = range.data_type,
            .hard_pin = range.hard_pin,
            .soft_pin_left = range.soft_pin_left,
            .writer = range.writer};
}

RangePlanned RangePlannedView::owned() const {
    return {.segment = segment,
            .offset = offset,
            .length = length,
            .generation = generation,
            .tenant = std::string(tenant),
            .key = std::string(key),
            .group = std::string(group),
            .data_type = data_type,
            .hard_pin = hard_pin,
            .soft_pin_left = soft_pin_left,
            .writer = writer};
}

EventView::EventView(const EventUpdate& update)
    : sequence(update.sequence), acknowledge(update.acknowledge), reset(update.reset), complete(update.complete), filled(update.filled),
      dropped(update.dropped), changed(update.changed), all_changed(update.all_changed), orders(update.orders), behind(update.behind),
      caught_up(update.caught_up), now(update.now) {
    planned.reserve(update.planned.size());
    for (const RangePlanned& range : update.planned) planned.push_back(RangePlannedView::of(range));
}

EventUpdate EventView::owned() const {
    EventUpdate update{.sequence = sequence,
                       .acknowledge = acknowledge,
                       .reset = reset,
                       .complete = complete,
                       .planned = {},
                       .filled = filled,
                       .dropped = dropped,
                       .changed = changed,
                       .all_changed = all_changed,
                       .orders = orders,
                       .behind = behind,
                       .caught_up = caught_up,
                       .now = now};
    update.planned.reserve(planned.size());
    for (const RangePlannedView& range : planned) update.planned.push_back(range.owned());
    return update;
}

}  // namespace mooncake::store
