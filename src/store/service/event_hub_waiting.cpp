// SPDX-License-Identifier: Apache-2.0
// Answers that wait until enough was told, and who keeps them waiting.
#include <algorithm>
#include <cerrno>
#include <iterator>
#include <utility>

#include "store/service/event_hub.h"

namespace mooncake::store {

std::vector<EventHub::Waiter> EventHub::settle() {
    std::vector<Waiter> settled;
    if (waiters_.empty()) return settled;
    look_after_unsent();
    const uint64_t acknowledged = all_acknowledged();
    if (!forsaken_.empty())
        for (Waiter& waiter : waiters_) waiter.forsaken = is_forsaken(waiter.caused);
    const auto waiting = std::stable_partition(waiters_.begin(), waiters_.end(), [&](const Waiter& waiter) MC_NO_THREAD_ANALYSIS {
        return !waiter.forsaken && (waiter.caused.change > acknowledged || is_open(waiter.caused));
    });
    settled.assign(std::make_move_iterator(waiting), std::make_move_iterator(waiters_.end()));
    waiters_.erase(waiting, waiters_.end());
    return settled;
}

void EventHub::answer(std::vector<Waiter> waiters) {
    for (Waiter& waiter : waiters) {
        if (waiter.forsaken && waiter.then) continue;  // whoever waits is told by the answer that goes with it
        if (waiter.forsaken) waiter.responder->fail(Error(Code::kUnavailable, "the master is being stopped", ESHUTDOWN));
        else if (waiter.then) waiter.then();
        else waiter.responder->reply(std::move(waiter.body));
    }
}

bool EventHub::told(const Caused& caused) {
    if (!may_be_open(caused)) return true;
    Lock lock(mutex_);
    look_after_unsent();
    return caused.change <= all_acknowledged() && !is_open(caused);
}

Time EventHub::answer_when_told(const Caused& caused, std::unique_ptr<rpc::Responder> responder, rpc::Bytes body, Time now) {
    if (!may_be_open(caused)) {
        responder->reply(std::move(body));
        return Time::max();
    }
    return wait({.caused = caused, .responder = std::move(responder), .body = std::move(body)}, now);
}

Time EventHub::call_when_told(const Caused& caused, std::function<void()> then, Time now) {
    if (!may_be_open(caused)) {
        then();
        return Time::max();
    }
    return wait({.caused = caused, .then = std::move(then)}, now);
}

Time EventHub::wait(Waiter waiter, Time now) {
    waiter.deadline = now + (waiter.caused.doubted.empty() ? options_.acknowledge_timeout : options_.unsent_timeout);
    std::vector<Waiter> settled;
    Time next = Time::max();
    {
        Lock lock(mutex_);
        waiters_.push_back(std::move(waiter));
        settled = settle();
        next = next_look(now);
    }
    answer(std::move(settled));
    return next;
}

Time EventHub::next_look(Time now) const {
    // Nobody tells us when a socket takes more.
    if (unsent_followers_.load(std::memory_order_relaxed) != 0 || holds_anything()) return now + options_.unsent_interval;
    Time next = Time::max();
    for (const Waiter& waiter : waiters_) next = std::min(next, waiter.deadline);
    return std::max(next, now);
}

std::vector<EventHub::FollowerPtr> EventHub::too_slow(Time now) {
    std::vector<FollowerPtr> slow;
    look_after_unsent();
    for (const auto& [client, follower] : followers_)
        if (!follower->unsent.empty() && now - follower->unsent.front().since >= options_.unsent_timeout) slow.push_back(follower);
    for (Waiter& waiter : waiters_) {
        if (waiter.deadline > now || waiter.caused.doubted.empty()) continue;
        waiter.deadline = now + options_.unsent_timeout;
        for (const Caused::Relied& doubted : waiter.caused.doubted) {
            if (!is_unheard(doubted)) continue;
            const FollowerPtr& follower = followers_.at(doubted.client);
            // Who is still being told what there was at the start says only afterwards that it has heard the rest. That may take long.
            if (follower->reporting || follower->report_outstanding != 0) continue;
            if (std::find(slow.begin(), slow.end(), follower) == slow.end()) slow.push_back(follower);
        }
    }
    return slow;
}

Time EventHub::expire(Time now) {
    bool behind = unsent_followers_.load(std::memory_order_acquire) != 0;
    if (!behind) {
        Lock lock(mutex_);
        behind = holds_anything() || std::any_of(waiters_.begin(), waiters_.end(), [&](const Waiter& waiter) {
                     return waiter.deadline <= now && !waiter.caused.doubted.empty();
                 });
    }
    if (behind) {
        Lock pushing(push_mutex_);
        std::vector<FollowerPtr> slow;
        {
            Lock lock(mutex_);
            slow = too_slow(now);
        }
        cut_off(slow, Error(Code::kTimedOut, "the stream was not read in time"));
        if (release_held() || !slow.empty()) push_all();
    }
    std::vector<Waiter> settled;
    Time next = Time::max();
    {
        Lock lock(mutex_);
        uint64_t overdue = 0;
        for (const Waiter& waiter : waiters_)
            if (waiter.deadline <= now) overdue = std::max(overdue, waiter.caused.change);
        if (overdue != 0)
            for (const auto& [client, follower] : followers_)
                if (follower->acknowledged < overdue) {
                    follower->lagging = true;
                    do_not_await(*follower);
                }
        settled = settle();
        next = next_look(now);
    }
    answer(std::move(settled));
    return next;
}

void EventHub::end_soon() {
    Lock lock(mutex_);
    ending_.store(true, std::memory_order_release);
}

void EventHub::answer_all() {
    std::vector<Waiter> settled, others;
    {
        Lock lock(mutex_);
        settled = settle();
        others.swap(waiters_);
        // Who waits only until readers have forgotten a value is answered: they do so without us, when their leases end.
        for (Waiter& waiter : others) waiter.forsaken = is_open(waiter.caused);
    }
    settled.insert(settled.end(), std::make_move_iterator(others.begin()), std::make_move_iterator(others.end()));
    std::erase_if(settled, [](const Waiter& waiter) { return waiter.then != nullptr; });
    answer(std::move(settled));
}

}  // namespace mooncake::store
