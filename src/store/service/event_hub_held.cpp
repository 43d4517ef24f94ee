// SPDX-License-Identifier: Apache-2.0
// What some may be told only when others have been: to copy to ranges, that a value goes because another has come.
#include <algorithm>
#include <utility>

#include "store/service/event_hub.h"

namespace mooncake::store {

void EventHub::note_filled(const Follower& follower) {
    const bool first = last_filled_ <= told_.load(std::memory_order_relaxed);
    filled_by_ = first || filled_by_ == follower.client ? follower.client : ClientId{};
    last_filled_ = observed_.load(std::memory_order_relaxed);
}

bool EventHub::hold_drop(Follower& follower, const RangeDropped& event) {
    const uint64_t told = told_.load(std::memory_order_relaxed);
    // Within one update what is filled counts before what is dropped.
    if (last_filled_ <= told || filled_by_ == follower.client) return false;
    noted();
    held_drops_.push_back({.client = follower.client,
                           .event = event,
                           .number = observed_.load(std::memory_order_relaxed),
                           .filled = {.first = told + 1, .last = last_filled_},
                           .rests_until = event.quarantine == Duration::zero() ? Time{} : options_.clock() + event.quarantine});
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

void EventHub::release_drops_of(const ClientId& client, uint64_t generation) {
    const Time now = options_.clock();
    std::erase_if(held_drops_, [&](HeldDrop& held) MC_NO_THREAD_ANALYSIS {
        if (held.released != 0 || held.client != client) return false;
        if (held.rests_until > now && held.event.generation != generation) return false;
        return !release(held);
    });
    holds_drops_.store(!held_drops_.empty(), std::memory_order_release);
}

bool EventHub::release(HeldDrop& held) {
    const auto found = followers_.find(held.client);
    if (found == followers_.end()) {
        unheard_by(held.client)->unsent().dropped(held.event);
        return false;
    }
    Follower& follower = *found->second;
    open_item(follower).dropped(held.event);
    noted_range(follower);
    follower.first_range = std::min(follower.first_range, held.number);  // whoever caused it waits for it
    held.released = observed_.load(std::memory_order_relaxed);
    return true;
}

}  // namespace mooncake::store
