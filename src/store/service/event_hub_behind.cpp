// SPDX-License-Identifier: Apache-2.0
// Nodes that do not hear, or may not hear, what becomes of their memory: everybody else is told.
#include <algorithm>
#include <vector>

#include "store/master/generations.h"
#include "store/service/event_hub.h"

namespace mooncake::store {

void EventHub::lose(Follower& follower) {
    do_not_await(follower);
    lost_[follower.client] = false;
    if (follower.lends) note_behind(follower.client);
}

void EventHub::note_behind(const ClientId& client) {
    relied_.fetch_add(1, std::memory_order_release);
    if (behind_.since(client).life == life_) return;
    // Nobody can have followed this life up to a later event, and not know of this one, unless it is behind again.
    const uint64_t event = client ? observed_.load(std::memory_order_relaxed) + 1 : 0;
    const Behind behind{.client = client, .since = {.life = life_, .event = event}};
    behind_.add(behind);
    tell_behind(behind);
}

void EventHub::tell_behind(const Behind& behind) {
    if (followers_.empty()) return;
    noted();
    const uint64_t event = observed_.load(std::memory_order_relaxed);
    word_.store(event, std::memory_order_release);
    for (const auto& [other, follower] : followers_) {
        if (other == behind.client) continue;
        open_item(*follower).behind(behind);
        follower->last_range = event;
        if (follower->first_range == 0) follower->first_range = event;
        if (follower->first_word == 0) follower->first_word = event;
    }
    for (Waiter& waiter : waiters_) waiter.caused.word = event;
}

void EventHub::tombstone_left(const MasterState&) {
    relied_.fetch_add(1, std::memory_order_release);
    if (went_on_.load(std::memory_order_relaxed)) return;
    Lock lock(mutex_);
    note_behind({});
    went_on_.store(true, std::memory_order_relaxed);
}

void EventHub::note_caught_up(const ClientId& client) {
    // It came to us as one that is behind, so that nothing was taken of what it held: what others say of earlier lives does not matter any more.
    if (outdated(client)) heard_.add({.client = client, .since = {.life = life_, .event = observed_.load(std::memory_order_relaxed)}});
    const bool before = behind_before_.erase(client);
    if (!behind_.erase(client) && !before) return;
    for (const auto& [other, follower] : followers_) {
        if (other == client) continue;  // it has just said so
        open_item(*follower).caught_up(client);
        noted();
    }
}

std::vector<ClientId> EventHub::believe(const ClientId& member, const HistoryPoint& told, std::span<const Behind> behind) {
    std::vector<ClientId> fresh;
    Lock lock(mutex_);
    // Lives are numbered by the clock; there must be room for those to come.
    const HistoryPoint heard = told.life < options_.life + Generations::kAheadMax ? told : HistoryPoint{};
    if (heard.life > life_) {  // the clock was set back between it and us
        life_ = heard.life + 1;
        went_on_.store(false, std::memory_order_relaxed);
    }
    if (!heard_.contains(member)) heard_.add({.client = member, .since = heard});
    for (const Behind& one : behind) {
        if (one.since.life >= life_) continue;                                               // we know better
        if (heard_.contains(one.client) && heard_.since(one.client) >= one.since) continue;  // that one has heard more since
        if (!behind_before_.add(one)) continue;
        tell_behind(one);
        if (one.client) {
            if (heard_.contains(one.client)) fresh.push_back(one.client);
            continue;
        }
        for (const Behind& other : heard_.all())
            if (other.since.life != 0 && other.since < one.since) fresh.push_back(other.client);
    }
    return fresh;
}

bool EventHub::outdated(const ClientId& member) const {
    return heard_.since(member) < std::max(behind_before_.since(member), behind_before_.since({}));
}

bool EventHub::distrusts(const ClientId& member) const {
    Lock lock(mutex_);
    return outdated(member);
}

}  // namespace mooncake::store
