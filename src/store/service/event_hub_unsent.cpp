// SPDX-License-Identifier: Apache-2.0
// Events that the kernel has not taken yet, and the answers that must not be given before.
#include <algorithm>

#include "store/service/event_hub.h"

namespace mooncake::store {

void EventHub::forget_unsent(Follower& follower) {
    if (follower.unsent.empty()) return;
    if (ending_.load(std::memory_order_relaxed))
        for (const Unsent& unsent : follower.unsent) forsaken_.push_back({.client = follower.client, .unsent = unsent});
    follower.unsent.clear();
    unsent_followers_.fetch_sub(1, std::memory_order_relaxed);
}

void EventHub::note_unsent(const Outgoing& outgoing, Time now) {
    Follower& follower = *outgoing.follower;
    follower.sent_bytes += outgoing.bytes;
    if (outgoing.last_range == 0 || follower.responder->unsent_bytes() == 0) return;
    if (follower.unsent.empty()) unsent_followers_.fetch_add(1, std::memory_order_relaxed);
    follower.unsent.push_back({.first = outgoing.first_range,
                               .last = outgoing.last_range,
                               .first_word = outgoing.first_word,
                               .end = follower.sent_bytes,
                               .since = now});
}

void EventHub::look_after_unsent() {
    if (unsent_followers_.load(std::memory_order_relaxed) == 0) return;
    size_t left = 0;
    for (const auto& [client, follower] : followers_) {
        if (follower->unsent.empty()) continue;
        // What was sent later is behind it; the frames around the bodies, which are not counted, only make us wait a little longer.
        const uint64_t unsent = follower->responder->unsent_bytes();
        while (!follower->unsent.empty() && (unsent == 0 || unsent <= follower->sent_bytes - follower->unsent.front().end))
            follower->unsent.pop_front();
        if (!follower->unsent.empty()) ++left;
    }
    unsent_followers_.store(left, std::memory_order_relaxed);
}

void EventHub::rely_on(const Follower* follower, Caused& caused) {
    if (follower == nullptr || follower->unsent.empty()) return;
    for (const Caused::Relied& known : caused.relied)
        if (known.client == follower->client) return;
    caused.relied.push_back({.client = follower->client, .last = follower->unsent.back().last});
}

void EventHub::rely_on(const MasterState& state, std::string_view tenant, std::string_view key, Caused& caused) {
    const TenantNumber number = state.tenant(tenant);
    const ObjectId id = number == 0 ? 0 : state.objects().find(number, key);
    if (id == 0) return;
    const Object& object = state.objects()[id];
    Lock lock(mutex_);
    for (size_t i = 0; i < object.replicas.size(); ++i) rely_on(owner(state, object.replicas[i].segment), caused);
    if (object.write == 0) return;
    const ReplicaList& written = state.write(object.write).replicas;
    for (size_t i = 0; i < written.size(); ++i) rely_on(owner(state, written[i].segment), caused);
}

void EventHub::rely_on_all(Caused& caused) const {
    caused.change = changes_.load(std::memory_order_acquire);
    if (!may_rely()) return;
    Lock lock(mutex_);
    for (const auto& [client, follower] : followers_) rely_on(follower.get(), caused);
}

void EventHub::rely_on_held(Caused& caused) const {
    if (!holds_back()) return;
    Lock lock(mutex_);
    for (const HeldDrop& held : held_drops_) {
        caused.first = caused.first == 0 ? held.number : std::min(caused.first, held.number);
        caused.last = std::max(caused.last, held.number);
    }
}

bool EventHub::is_held(const Caused& caused) const {
    return caused.first != 0 && std::any_of(held_drops_.begin(), held_drops_.end(), [&](const HeldDrop& held) {
               return held.number >= caused.first && held.number <= caused.last;
           });
}

bool EventHub::concerns(const Unsent& unsent, const Caused& caused) {
    if (unsent.first_word != 0 && unsent.first_word <= caused.word) return true;
    return caused.first != 0 && unsent.first <= caused.last && unsent.last >= caused.first;
}

bool EventHub::is_unsent(const Caused& caused) const {
    if (unsent_followers_.load(std::memory_order_relaxed) == 0) return false;
    for (const Caused::Relied& relied : caused.relied) {
        const auto found = followers_.find(relied.client);
        if (found != followers_.end() && !found->second->unsent.empty() && found->second->unsent.front().first <= relied.last) return true;
    }
    if (caused.first == 0 && caused.word == 0) return false;
    return std::any_of(followers_.begin(), followers_.end(), [&](const auto& one) {
        return std::any_of(one.second->unsent.begin(), one.second->unsent.end(),
                           [&](const Unsent& unsent) { return concerns(unsent, caused); });
    });
}

bool EventHub::is_forsaken(const Caused& caused) const {
    return std::any_of(forsaken_.begin(), forsaken_.end(), [&](const Forsaken& one) {
        if (concerns(one.unsent, caused)) return true;
        return std::any_of(caused.relied.begin(), caused.relied.end(),
                           [&](const Caused::Relied& relied) { return relied.client == one.client && one.unsent.first <= relied.last; });
    });
}

}  // namespace mooncake::store
