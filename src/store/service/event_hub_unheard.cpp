// SPDX-License-Identifier: Apache-2.0
// Events that were sent, as far as a sender can tell, but may not have been heard.
#include <algorithm>
#include <utility>

#include "store/service/event_hub.h"

namespace mooncake::store {

namespace {
constexpr Duration kForgetInterval = 1s;  // there may be very many

size_t gone_bytes(const UnheardEvents& unheard) { return unheard.gone_since == Time::max() ? 0 : unheard.bytes(); }

}  // namespace

UnheardEvents* EventHub::unheard_of(const MasterState& state, SegmentNumber segment) {
    const auto found = unheard_.find(state.clients()[state.segments()[segment].client].id);
    return found == unheard_.end() ? nullptr : found->second.get();
}

void EventHub::keep_sent() {
    std::span<const std::byte> bytes(sent_bytes_);
    for (const Sent& sent : sent_) {
        sent.unheard->keep(sent.sequence, sent.first, bytes.first(sent.bytes));
        bytes = bytes.subspan(sent.bytes);
    }
}

void EventHub::reuse(Outgoing& outgoing) {
    std::vector<Item>& next = outgoing.follower->items;
    if (!next.empty() || outgoing.items.size() != 1 || outgoing.items[0].report) return;  // the frequent case
    outgoing.items.clear();
    next.swap(outgoing.items);
}

void EventHub::keep_unsent(Follower& follower) {
    for (const Item& item : std::exchange(follower.items, {})) {
        if (!item.writer.has_ranges()) continue;
        const uint64_t sequence = follower.unheard->next();
        follower.unheard->keep(sequence, follower.first_range, item.writer.encode({.sequence = sequence}));
    }
}

UnheardEvents::Missed EventHub::missed(const ClientId& client, uint64_t heard, uint64_t remembered) {
    Lock lock(mutex_);
    return unheard_by(client)->after(heard, remembered);
}

const EventHub::UnheardPtr& EventHub::unheard_by(const ClientId& client) {
    UnheardPtr& unheard = unheard_[client];
    if (!unheard) unheard = std::make_shared<UnheardEvents>(options_.unheard_bytes_max);
    return unheard;
}

void EventHub::doubt(const MasterState& state, SegmentNumber segment, Caused& caused) {
    Lock lock(mutex_);
    Follower* const follower = owner(state, segment);
    if (follower == nullptr) return;
    if (!follower->items.empty()) follower->items.back().ask = true;
    caused.doubted.push_back({.client = follower->client, .last = observed_.load(std::memory_order_relaxed)});
}

bool EventHub::is_unheard(const Caused::Relied& doubted) const {
    const auto found = followers_.find(doubted.client);
    return found != followers_.end() && found->second->unheard->concerns(doubted.last);
}

bool EventHub::is_open(const Caused& caused) const {
    return is_unsent(caused) || is_held(caused) ||
           std::any_of(caused.doubted.begin(), caused.doubted.end(),
                       [&](const Caused::Relied& doubted) MC_NO_THREAD_ANALYSIS { return is_unheard(doubted); });
}

void EventHub::forget_gone(const MasterState& state) {
    const Time now = options_.clock();
    if (now < forget_at_) return;
    forget_at_ = now + kForgetInterval;
    size_t bytes = 0;
    std::erase_if(unheard_, [&](const auto& one) {
        UnheardEvents& unheard = *one.second;
        if (state.clients().alive(state.clients().find(one.first))) {
            unheard.gone_since = Time::max();
            return false;
        }
        if (unheard.gone_since == Time::max()) unheard.gone_since = now;
        if (!unheard.may_hold() || now - unheard.gone_since > options_.gone_time_max) return true;
        bytes += unheard.bytes();
        return false;
    });
    while (bytes > options_.gone_bytes_max) {  // who has missed little does not pay for the others
        const auto most = std::max_element(unheard_.begin(), unheard_.end(),
                                           [](const auto& a, const auto& b) { return gone_bytes(*a.second) < gone_bytes(*b.second); });
        bytes -= gone_bytes(*most->second);
        most->second->give_up();
    }
}

}  // namespace mooncake::store
