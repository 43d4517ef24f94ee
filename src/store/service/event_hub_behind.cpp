// SPDX-License-Identifier: Apache-2.0
// Nodes that do not hear, or may not hear, what becomes of their memory: everybody else is told, and orders that concern it wait.
#include <vector>

#include "store/service/event_hub.h"

namespace mooncake::store {

void EventHub::lose(Follower& follower) {
    do_not_await(follower);
    lost_[follower.client] = {.sequence = follower.sequence};
    if (follower.lends) note_behind(follower.client);
}

void EventHub::note_behind(const ClientId& client) {
    if (!behind_.add(client) || followers_.empty()) return;
    noted();
    const uint64_t event = observed_.load(std::memory_order_relaxed);
    for (const auto& [other, follower] : followers_) {
        if (other == client) continue;
        open_item(*follower).behind(client);
        follower->last_range = event;
        if (follower->first_range == 0) follower->first_range = event;
    }
    for (Waiter& waiter : waiters_) {
        waiter.caused.last = event;
        if (waiter.caused.first == 0) waiter.caused.first = event;
    }
}

void EventHub::note_caught_up(const ClientId& client) {
    if (!behind_.erase(client)) return;
    if (distrusted_.erase(client)) settled_.add(client);
    for (const auto& [other, follower] : followers_) {
        if (other == client) continue;  // it has just said so
        open_item(*follower).caught_up(client);
        noted();
    }
}

std::vector<ClientId> EventHub::believe(std::span<const ClientId> behind) {
    std::vector<ClientId> fresh;
    Lock lock(mutex_);
    for (const ClientId& client : behind) {
        if (settled_.contains(client) || !distrusted_.add(client)) continue;
        fresh.push_back(client);
        note_behind(client);
    }
    return fresh;
}

bool EventHub::distrusts(const ClientId& client) const {
    Lock lock(mutex_);
    return distrusted_.contains(client);
}

bool EventHub::release_orders() {
    bool any = false;
    Lock lock(mutex_);
    std::erase_if(held_orders_, [&](const HeldOrder& held) MC_NO_THREAD_ANALYSIS {
        if (held.planned.last > told_.load(std::memory_order_relaxed) || is_unsent(held.planned)) return false;
        // Who does not follow any more is told of its orders when it does.
        const auto found = followers_.find(held.client);
        if (found == followers_.end()) return true;
        open_item(*found->second).order(held.order);
        noted();
        return any = true;
    });
    return any;
}

}  // namespace mooncake::store
