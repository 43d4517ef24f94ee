// SPDX-License-Identifier: Apache-2.0
#include "store/service/event_hub.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace mooncake::store {

namespace {
constexpr size_t kUpdateBytes = 256;  // of memory that an update takes while it waits, besides its contents
}

// ---- what is noted under the master's lock

EventHub::Follower* EventHub::owner(const MasterState& state, SegmentNumber segment) {
    if (followers_.empty()) return nullptr;
    const auto [known, fresh] = by_segment_.try_emplace(segment, nullptr);
    if (fresh) {
        const auto found = followers_.find(state.clients()[state.segments()[segment].client].id);
        if (found != followers_.end()) known->second = found->second.get();
    }
    return known->second;
}

EventWriter& EventHub::open_item(Follower& follower) {
    if (follower.items.empty() || follower.items.back().sealed || follower.items.back().writer.bytes() >= options_.update_bytes_max)
        follower.items.emplace_back();
    return follower.items.back().writer;
}

void EventHub::noted_range(Follower& follower) {
    noted();
    follower.lends = true;
    follower.last_range = observed_.load(std::memory_order_relaxed);
    if (follower.first_range == 0) follower.first_range = follower.last_range;
}

void EventHub::plan(Follower& follower, const RangePlanned& event) {
    open_item(follower).planned(RangePlannedView::of(event));
    noted_range(follower);
}

void EventHub::range_planned(const MasterState& state, SegmentNumber segment, WriteId write) {
    Lock lock(mutex_);
    if (Follower* follower = owner(state, segment)) return plan(*follower, event_of_write(state, segment, write));
    if (UnheardEvents* unheard = unheard_of(state, segment))
        unheard->unsent().planned(RangePlannedView::of(event_of_write(state, segment, write)));
}

void EventHub::range_planned_for_copy(const MasterState& state, SegmentNumber segment, CopyId copy) {
    Lock lock(mutex_);
    if (planned_from_ == 0) planned_from_ = observed_.load(std::memory_order_relaxed) + 1;
    Follower* follower = owner(state, segment);
    if (follower == nullptr) {
        UnheardEvents* const unheard = unheard_of(state, segment);
        if (unheard == nullptr) return;
        unheard->seal();
        return unheard->unsent().planned(RangePlannedView::of(event_of_copy(state, segment, copy, options_.clock())));
    }
    // A copy has the generation of its value, which may just have been dropped here; within one update that would read the other way round.
    if (!follower->items.empty()) follower->items.back().sealed = true;
    plan(*follower, event_of_copy(state, segment, copy, options_.clock()));
}

void EventHub::range_filled(const MasterState& state, SegmentNumber segment, uint64_t generation, uint64_t checksum) {
    Lock lock(mutex_);
    const RangeFilled event{.segment = state.segments()[segment].spec.id, .generation = generation, .checksum = checksum};
    if (Follower* follower = owner(state, segment)) {
        open_item(*follower).filled(event);
        noted_range(*follower);
        last_filled_ = observed_.load(std::memory_order_relaxed);
    } else if (UnheardEvents* unheard = unheard_of(state, segment)) {
        unheard->unsent().filled(event);
    }
}

void EventHub::range_dropped(const MasterState& state, SegmentNumber segment, uint64_t generation, Duration quarantine, bool rests) {
    Lock lock(mutex_);
    const RangeDropped event{.segment = state.segments()[segment].spec.id, .generation = generation, .quarantine = quarantine};
    if (Follower* follower = owner(state, segment)) {
        if (rests && hold_drop(*follower, segment, event)) return;
        if (rests) end_rest(segment, generation);
        open_item(*follower).dropped(event);
        return noted_range(*follower);
    }
    if (rests) end_rest(segment, generation);
    if (UnheardEvents* unheard = unheard_of(state, segment)) unheard->unsent().dropped(event);
    note_behind(state.clients()[state.segments()[segment].client].id);
}

void EventHub::value_outdated(const MasterState& state, ObjectId id) {
    Lock lock(mutex_);
    if (followers_.empty()) return;
    const Object& object = state.objects()[id];
    if (changed_.changed_keys() >= options_.changed_keys_max || changed_.bytes() >= options_.update_bytes_max) changed_.all_changed();
    changed_.changed(state.tenants()[object.tenant].name, object.key());
    changes_.fetch_add(1, std::memory_order_release);
    noted();
}

void EventHub::copy_ordered(const MasterState& state, CopyId copy) {
    Lock lock(mutex_);
    const uint64_t planned_from = std::exchange(planned_from_, 0);
    Follower* follower = owner(state, state.copy(copy).source);
    if (follower == nullptr) return;
    const Caused planned{.first = planned_from, .last = observed_.load(std::memory_order_relaxed)};
    held_orders_.push_back({.client = follower->client, .order = order_of(state, copy), .planned = planned});
    noted();
}

void EventHub::segment_removed(const MasterState&, SegmentNumber segment) {
    Lock lock(mutex_);
    by_segment_.erase(segment);
}

// ---- followers

void EventHub::follow(const MasterState& state, ClientNumber client, std::unique_ptr<rpc::Responder> responder) {
    auto follower = std::make_shared<Follower>();
    follower->client = state.clients()[client].id;
    follower->responder = std::move(responder);
    follower->unreported = state.clients()[client].segments;
    follower->lends = !follower->unreported.empty();
    follower->reporting = true;
    Item& first = follower->items.emplace_back();
    first.reset = first.sealed = true;
    first.writer.all_changed();  // whatever it remembers from an earlier event stream: it may have missed events
    follower->process = follower->responder->peer().incarnation;
    Lock lock(mutex_);
    for (const Behind& behind : behind_before_.all()) first.writer.behind(behind);
    for (const Behind& behind : behind_.all()) first.writer.behind(behind);
    first.now = {.life = life_, .event = observed_.load(std::memory_order_relaxed)};
    follower->acknowledged = changes_.load(std::memory_order_relaxed);
    lost_.erase(follower->client);
    FollowerPtr& slot = followers_[follower->client];
    if (slot) end(std::exchange(slot, nullptr), Error(Code::kStale, "the client follows anew"));
    // Numbers go on where the earlier event stream ended, so that a late acknowledgement of it means nothing here.
    follower->unheard = unheard_by(follower->client);
    follower->unheard->seal();
    if (follower->lends) follower->unheard->note_holding();
    follower->unheard->gone_since = Time::max();
    slot = std::move(follower);
    await(*slot);
    by_segment_.clear();
    noted();
}

void EventHub::end(FollowerPtr follower, Error why) {
    by_segment_.clear();
    do_not_await(*follower);
    keep_unsent(*follower);
    forget_unsent(*follower);
    ended_.push_back({std::move(follower), std::move(why)});
    noted();
}

std::vector<ClientId> EventHub::take_lost(const MasterState& state) {
    std::vector<ClientId> clients;
    Lock lock(mutex_);
    for (auto at = followers_.begin(); at != followers_.end();) {
        if (!at->second->responder->abandoned()) {
            ++at;
            continue;
        }
        lose(*at->second);
        FollowerPtr follower = std::move(at->second);
        at = followers_.erase(at);
        end(std::move(follower), Error(Code::kUnavailable, "nobody listens"));
    }
    std::erase_if(lost_, [&](const auto& one) { return !state.clients().alive(state.clients().find(one.first)); });
    for (auto& [client, told] : lost_)
        if (!std::exchange(told, true)) clients.push_back(client);
    forget_gone(state);
    if (asked_.size() > 2 * followers_.size() + 16) {  // many are of processes that are gone
        std::erase_if(asked_, [now = options_.clock()](const auto& one) { return one.second <= now; });
    }
    return clients;
}

void EventHub::drop_strangers(const MasterState& state) {
    Lock lock(mutex_);
    for (auto at = followers_.begin(); at != followers_.end();) {
        if (state.clients().alive(state.clients().find(at->first))) {
            ++at;
            continue;
        }
        FollowerPtr follower = std::move(at->second);
        at = followers_.erase(at);
        if (follower->lends) note_behind(follower->client);
        end(std::move(follower), Error(Code::kNotFound, "the master has given the client up"));
    }
}

bool EventHub::wants_report(const ClientId& client) const {
    Lock lock(mutex_);
    const auto found = followers_.find(client);
    return found != followers_.end() && may_report(*found->second);
}

bool EventHub::may_report(const Follower& follower) const {
    if (!follower.reporting || follower.report_outstanding >= options_.report_window) return false;
    // The end of a report says that it was everything, so that what was not told is gone. Who hears that something goes acknowledges it, and is told the end.
    return !follower.unreported.empty() || !holds_drop_of(follower.client);
}

void EventHub::report(const MasterState& state, const ClientId& client, Time now) {
    Lock lock(mutex_);
    const auto found = followers_.find(client);
    if (found == followers_.end() || !may_report(*found->second)) return;
    Follower& follower = *found->second;
    Item& item = follower.items.emplace_back();
    item.sealed = true;
    item.report.emplace();
    if (!follower.unreported.empty() && !tell_ranges(state, follower.unreported.back(), follower.cursor,
                                                     {options_.report_ranges, options_.update_bytes_max}, now, *item.report)) {
        follower.unreported.pop_back();
        follower.cursor = {};
    }
    if (follower.unreported.empty() && !holds_drop_of(client)) {
        // Whatever of them an earlier event stream told may have been lost.
        item.complete = !tell_orders(state, client, follower.orders, options_.update_bytes_max, *item.report);
        follower.reporting = !item.complete;
        if (item.complete) item.report->now = {.life = life_, .event = observed_.load(std::memory_order_relaxed)};
        std::erase_if(item.report->orders, [this](const CopyOrder& order) MC_NO_THREAD_ANALYSIS {
            return std::any_of(held_orders_.begin(), held_orders_.end(),
                               [&](const HeldOrder& held) { return held.order.task == order.task; });
        });
    }
    ++follower.report_outstanding;
    noted();
}

size_t EventHub::followers() const {
    Lock lock(mutex_);
    return followers_.size();
}

// ---- sending

void EventHub::flush() {
    const uint64_t wanted = observed_.load(std::memory_order_acquire);
    if (told_.load(std::memory_order_acquire) >= wanted) return;
    Lock pushing(push_mutex_);
    if (told_.load(std::memory_order_relaxed) >= wanted) return;  // whoever was at it sent ours too
    push_all();
}

void EventHub::push_all() {
    bool gone = false;
    do {
        while (!push()) gone = true;
    } while (release_held());
    if (!gone) return;
    std::vector<Waiter> settled;
    {
        Lock lock(mutex_);
        settled = settle();
    }
    answer(std::move(settled));
}

bool EventHub::push() {
    std::vector<Outgoing>& outgoing = outgoing_;
    outgoing.clear();
    sent_.clear();
    sent_bytes_.clear();
    std::vector<Ended> ended;
    uint64_t taken = 0;
    {
        Lock lock(mutex_);
        taken = observed_.load(std::memory_order_relaxed);
        ended.swap(ended_);
        take_outgoing(outgoing);
    }
    std::vector<FollowerPtr> slow;
    bool backlog = false;
    for (Outgoing& one : outgoing) {
        if (!send(one)) slow.push_back(one.follower);
        else if (one.last_range != 0 && one.follower->responder->unsent_bytes() != 0) backlog = true;
    }
    backlog |= unsent_followers_.load(std::memory_order_relaxed) != 0;
    if (backlog || !sent_.empty()) {
        const Time now = backlog ? options_.clock() : Time{};
        Lock lock(mutex_);
        for (const Outgoing& one : outgoing)
            if (backlog) note_unsent(one, now);
        keep_sent();
        for (Outgoing& one : outgoing) reuse(one);
    }
    outgoing.clear();
    // Before anybody is answered.
    cut_off(slow, Error(Code::kNoSpace, "the stream was not read fast enough"));
    for (const Ended& one : ended) one.follower->responder->fail(one.why);
    // Those that were cut off are behind now, which the others have yet to be told.
    if (slow.empty()) told_.store(taken, std::memory_order_release);
    if (slow.empty() && ended.empty()) return true;
    Lock lock(mutex_);
    by_segment_.clear();
    return false;
}

void EventHub::cut_off(std::span<const FollowerPtr> slow, const Error& why) {
    for (const FollowerPtr& follower : slow) {
        if (!follower->responder->abandoned())
            MC_LOG_WARNING_EVERY(10s, "client {} reads its stream too slowly and is cut off", follower->client.to_string());
        follower->responder->break_off(why);
        Lock lock(mutex_);
        const auto found = followers_.find(follower->client);
        if (found == followers_.end() || found->second != follower) continue;
        lose(*follower);
        keep_unsent(*follower);
        forget_unsent(*follower);
        followers_.erase(found);
        by_segment_.clear();
    }
}

void EventHub::take_outgoing(std::vector<Outgoing>& outgoing) {
    const uint64_t change = changes_.load(std::memory_order_relaxed);
    const Time now = options_.clock();
    std::shared_ptr<Changes> changes;
    if (!changed_.empty()) changes = std::make_shared<Changes>(Changes{.writer = std::exchange(changed_, {}), .encoded = {}});
    for (const auto& [client, follower] : followers_) {
        const bool changed = add_changes(*follower, changes, now);
        if (follower->items.empty()) continue;
        Outgoing one{.follower = follower,
                     .items = std::exchange(follower->items, {}),
                     .first_sequence = follower->unheard->sequence() + 1,
                     .changed = changed,
                     .first_range = std::exchange(follower->first_range, 0),
                     .last_range = std::exchange(follower->last_range, 0),
                     .first_word = std::exchange(follower->first_word, 0)};
        for (Item& item : one.items) {
            const uint64_t sequence = follower->unheard->next();
            if (item.report) follower->awaited.push_back({.sequence = sequence, .change = 0, .sent = now});
            if (item.writer.has_ranges()) item.ask |= follower->unheard->asks_after(item.writer.bytes(), options_.ask_bytes);
        }
        if (changed) {
            const size_t bytes = kUpdateBytes + (changes ? changes->writer.bytes() : 0);
            follower->unacknowledged_bytes += bytes;
            follower->awaited.push_back({.sequence = follower->unheard->sequence(), .change = change, .sent = now, .bytes = bytes});
        }
        outgoing.push_back(std::move(one));
    }
}

bool EventHub::add_changes(Follower& follower, const std::shared_ptr<Changes>& changes, Time now) {
    if (follower.missed && follower.awaited.empty()) {
        follower.missed = false;
        open_item(follower).all_changed();
        return true;
    }
    if (!changes || follower.missed) return false;
    if (!may_remember(follower, now)) {
        pass_over(follower, now);
        return false;
    }
    follower.missed = too_far_behind(follower, now);
    if (follower.missed) return false;
    if (follower.items.empty() || follower.items.back().sealed) {
        Item& item = follower.items.emplace_back();
        item.changes = changes;
        item.sealed = true;
    } else {
        open_item(follower).add_changes_of(changes->writer);
    }
    return true;
}

void EventHub::pass_over(Follower& follower, Time now) {
    const uint64_t change = changes_.load(std::memory_order_relaxed);
    if (follower.awaited.empty()) {
        do_not_await(follower);
        follower.acknowledged = change;
        follower.lagging = false;
        await(follower);
    } else if (follower.awaited.back().change != 0) {
        follower.awaited.back().change = change;
    } else {  // a part of its report, which is counted by itself
        follower.awaited.push_back({.sequence = follower.awaited.back().sequence, .change = change, .sent = now});
    }
}

bool EventHub::may_remember(const Follower& follower, Time now) const {
    if (!follower.process) return true;
    const auto asked = asked_.find(follower.process.value);
    return asked != asked_.end() && asked->second > now;
}

bool EventHub::too_far_behind(const Follower& follower, Time now) const {
    if (follower.awaited.empty()) return false;
    const bool late = now - follower.awaited.front().sent > options_.acknowledge_timeout;
    return follower.unacknowledged_bytes > (late ? options_.lagging_bytes_max : options_.unacknowledged_bytes_max);
}

void EventHub::asked(const MasterState& state, Incarnation process, Time now) {
    if (!process) return;
    Lock lock(mutex_);
    Time& until = asked_[process.value];
    until = std::max(until, now + state.options().lease_ttl);
}

bool EventHub::send(Outgoing& outgoing) {
    uint64_t sequence = outgoing.first_sequence;
    bool taken = true;
    for (size_t i = 0; i < outgoing.items.size(); ++i, ++sequence) {
        Item& item = outgoing.items[i];
        if (!taken && !item.writer.has_ranges()) continue;
        const bool acknowledge = item.report.has_value() || item.ask || (outgoing.changed && i + 1 == outgoing.items.size());
        rpc::Bytes body;
        if (item.report) {
            EventUpdate& update = *item.report;
            update.sequence = sequence;
            update.acknowledge = true;
            update.complete = item.complete;
            body = encode_event_update(update);
        } else if (item.changes) {
            rpc::Bytes& encoded = item.changes->encoded;
            if (encoded.empty()) encoded = item.changes->writer.encode({.sequence = sequence, .acknowledge = true});
            body = encoded;
            set_event_sequence(body, sequence);
        } else {
            body = item.writer.encode(
                {.sequence = sequence, .acknowledge = acknowledge, .reset = item.reset, .complete = item.complete, .now = item.now});
        }
        // Nobody waits for what need not be acknowledged.
        const auto haste = acknowledge || item.reset || item.complete ? rpc::Responder::Haste::kNow : rpc::Responder::Haste::kLater;
        const size_t bytes = body.size();
        if (item.writer.has_ranges()) {
            sent_.push_back(
                {.unheard = outgoing.follower->unheard.get(), .sequence = sequence, .first = outgoing.first_range, .bytes = bytes});
            sent_bytes_.insert(sent_bytes_.end(), body.begin(), body.end());
        }
        if (!taken) continue;
        taken = outgoing.follower->responder->part(std::move(body), haste);
        if (taken) outgoing.bytes += bytes;
    }
    return taken;
}

// ---- acknowledgements

void EventHub::acknowledge(const ClientId& client, uint64_t sequence) {
    std::vector<Waiter> settled;
    size_t heard = 0;
    {
        Lock lock(mutex_);
        const auto found = followers_.find(client);
        if (found == followers_.end()) return;
        Follower& follower = *found->second;
        if (sequence > follower.unheard->sequence()) return;  // nothing of ours
        const uint64_t before = all_acknowledged();
        do_not_await(follower);
        while (!follower.awaited.empty() && follower.awaited.front().sequence <= sequence) {
            const Awaited awaited = follower.awaited.front();
            follower.awaited.pop_front();
            follower.unacknowledged_bytes -= awaited.bytes;
            if (awaited.change == 0) --follower.report_outstanding;
            else follower.acknowledged = awaited.change;
        }
        if (follower.awaited.empty() || options_.clock() - follower.awaited.front().sent < options_.acknowledge_timeout)
            follower.lagging = false;
        if (!follower.reporting && follower.report_outstanding == 0) {
            heard = follower.unheard->heard(sequence);
            note_caught_up(client);
        }
        if (follower.missed && follower.awaited.empty()) noted();  // now it is told that all has changed
        if (!follower.lagging) await(follower);
        // Of very many followers, only the last one lets anybody go.
        if (all_acknowledged() != before || heard != 0) settled = settle();
    }
    answer(std::move(settled));
}

void EventHub::await(Follower& follower) {
    if (std::exchange(follower.counted, true)) return;
    ++acknowledged_[follower.acknowledged];
}

void EventHub::do_not_await(Follower& follower) {
    if (!std::exchange(follower.counted, false)) return;
    const auto found = acknowledged_.find(follower.acknowledged);
    if (--found->second == 0) acknowledged_.erase(found);
}

}  // namespace mooncake::store
