// SPDX-License-Identifier: Apache-2.0
// What some may be told only when others have been: to copy to ranges, that a value goes because another has come.
#include <algorithm>
#include <utility>

#include "store/service/event_hub.h"

namespace mooncake::store {

bool EventHub::hold_drop(Follower& follower, SegmentNumber segment, const RangeDropped& event) {
    const uint64_t told = told_.load(std::memory_order_relaxed);
    if (last_filled_ <= told) return false;  // nobody follows who has it
    noted();
    held_drops_.push_back({.client = follower.client,
                           .segment = segment,
                           .event = event,
                           .number = observed_.load(std::memory_order_relaxed),
                           .filled = {.first = told + 1, .last = last_filled_}});
    holds_drops_.store(true, std::memory_order_release);
    follower.lends = true;
    return true;
}

bool EventHub::is_told(const Caused& caused) const { return caused.last <= told_.load(std::memory_order_relaxed) && !is_unsent(caused); }

bool EventHub::release_held() {
    bool any = false;
    Lock lock(mutex_);
    if (!holds_anything()) return false;
    std::erase_if(held_orders_, [&](const HeldOrder& held) MC_NO_THREAD_ANALYSIS {
        if (!is_told(held.planned)) return false;
        // Who does not follow any more is told of its orders when it does.
        const auto found = followers_.find(held.client);
        if (found == followers_.end()) return true;
        open_item(*found->second).order(held.order);
        noted();
        return any = true;
    });
    std::erase_if(held_drops_, [&](HeldDrop& held) MC_NO_THREAD_ANALYSIS {
        if (held.released != 0) return held.released <= told_.load(std::memory_order_relaxed);
        if (!is_told(held.filled)) return false;
        any = true;
        return !release(held);
    });
    holds_drops_.store(!held_drops_.empty(), std::memory_order_release);
    return any;
}

bool EventHub::holds_drop_of(const ClientId& client) const {
    return std::any_of(held_drops_.begin(), held_drops_.end(),
                       [&](const HeldDrop& held) { return held.released == 0 && held.client == client; });
}

void EventHub::end_rest(SegmentNumber segment, uint64_t generation) {
    rested_.push_back({.segment = segment, .generation = generation});
    any_rested_.store(true, std::memory_order_release);
}

void EventHub::catch_up(Transaction& transaction, Time now) {
    if (!any_rested_.load(std::memory_order_acquire)) return;
    std::vector<Replaced> rested;
    {
        Lock lock(mutex_);
        rested.swap(rested_);
        any_rested_.store(false, std::memory_order_relaxed);
    }
    for (const Replaced& one : rested) transaction.apply(ReplacedTold{.segment = one.segment, .generation = one.generation, .now = now});
}

bool EventHub::release(HeldDrop& held) {
    end_rest(held.segment, held.event.generation);  // whatever its memory is used for is noted after this
    const auto found = followers_.find(held.client);
    if (found == followers_.end()) {
        unheard_by(held.client)->unsent().dropped(held.event);
        return false;
    }
    Follower& follower = *found->second;
    open_item(follower).dropped(held.event);
    if (follower.reporting) follower.items.back().ask = true;  // the end of its report waits for this
    noted_range(follower);
    follower.first_range = std::min(follower.first_range, held.number);  // whoever caused it waits for it
    held.released = observed_.load(std::memory_order_relaxed);
    return true;
}

}  // namespace mooncake::store
