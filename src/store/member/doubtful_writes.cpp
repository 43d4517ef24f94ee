// SPDX-License-Identifier: Apache-2.0
#include "store/member/doubtful_writes.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/thread.h"

namespace mooncake::store {

void DoubtfulWrites::add(Write write, std::span<const std::string> endpoints, Time until) {
    if (endpoints.empty()) return;
    Lock lock(mutex_);
    if (stopped_) return;
    if (doubts_.size() >= kWritesMax) doubts_.pop_front();
    doubts_.push_back({.number = ++last_, .write = std::move(write), .endpoints = {endpoints.begin(), endpoints.end()}, .until = until});
    const Time now = hooks_.clock();
    for (const std::string& endpoint : endpoints) endpoints_.try_emplace(endpoint, Endpoint{.retry_at = now + kPauseMin});
    if (!hooks_.threaded) return;
    if (!thread_.joinable()) {
        // Without one they are in quarantine for their time, unless there is one for the next of them.
        auto started = try_start_thread("mc-store-doubt", [this](const std::stop_token& stop) { run(stop); });
        if (started) thread_ = std::move(*started);
        else MC_LOG_WARNING_EVERY(10s, "writes that were given up are not settled: {}", started.error().to_string());
    }
    changed_.notify_all();
}

void DoubtfulWrites::forget_all() {
    Lock lock(mutex_);
    doubts_.clear();
    endpoints_.clear();
}

void DoubtfulWrites::stop() {
    std::jthread thread;
    {
        Lock lock(mutex_);
        stopped_ = true;
        thread.swap(thread_);
    }
    thread.request_stop();  // joined on the way out, without the lock
}

size_t DoubtfulWrites::size() const {
    Lock lock(mutex_);
    return doubts_.size();
}

std::vector<std::string> DoubtfulWrites::due(Time now) {
    std::erase_if(doubts_, [now](const Doubt& doubt) { return doubt.until <= now; });
    std::erase_if(endpoints_, [this](const auto& one) MC_NO_THREAD_ANALYSIS {
        return std::none_of(doubts_.begin(), doubts_.end(), [&](const Doubt& doubt) {
            return std::find(doubt.endpoints.begin(), doubt.endpoints.end(), one.first) != doubt.endpoints.end();
        });
    });
    std::vector<std::string> endpoints;
    for (const auto& [name, endpoint] : endpoints_)
        if (endpoint.retry_at <= now) endpoints.push_back(name);
    return endpoints;
}

void DoubtfulWrites::fenced(const std::string& endpoint, uint64_t before) {
    for (Doubt& doubt : doubts_)
        if (doubt.number <= before) std::erase(doubt.endpoints, endpoint);
}

Time DoubtfulWrites::settle() {
    std::vector<std::string> endpoints;
    uint64_t before = 0;
    {
        Lock lock(mutex_);
        endpoints = due(hooks_.clock());
        before = last_;  // what comes in while we fence may have been sent behind the fence
    }
    for (const std::string& endpoint : endpoints) {
        const bool quiet = hooks_.fence(endpoint);
        Lock lock(mutex_);
        if (quiet) {
            fenced(endpoint, before);
        } else if (const auto known = endpoints_.find(endpoint); known != endpoints_.end()) {
            known->second.retry_at = hooks_.clock() + known->second.pause;
            known->second.pause = std::min(2 * known->second.pause, kPauseMax);
        }
    }
    tell_settled();
    Lock lock(mutex_);
    return next();
}

void DoubtfulWrites::tell_settled() {
    const auto settled = [](const Doubt& doubt) { return doubt.endpoints.empty(); };
    std::vector<Write> writes;
    std::vector<uint64_t> numbers;
    {
        Lock lock(mutex_);
        if (hooks_.clock() < tell_at_) return;
        for (const Doubt& doubt : doubts_) {
            if (!settled(doubt)) continue;
            writes.push_back(doubt.write);
            numbers.push_back(doubt.number);
        }
    }
    if (writes.empty()) return;
    const bool told = hooks_.tell(writes);
    Lock lock(mutex_);
    if (!told) tell_at_ = hooks_.clock() + kPauseMin;
    else std::erase_if(doubts_, [&](const Doubt& doubt) { return std::binary_search(numbers.begin(), numbers.end(), doubt.number); });
}

Time DoubtfulWrites::next() const {
    Time at = Time::max();
    for (const Doubt& doubt : doubts_) {
        if (doubt.endpoints.empty()) at = std::min(at, tell_at_);
        for (const std::string& name : doubt.endpoints)
            if (const auto endpoint = endpoints_.find(name); endpoint != endpoints_.end()) at = std::min(at, endpoint->second.retry_at);
    }
    return at;
}

void DoubtfulWrites::run(const std::stop_token& stop) MC_NO_THREAD_ANALYSIS {
    while (!stop.stop_requested()) {
        const Time at = settle();
        std::unique_lock lock(mutex_);
        const uint64_t known = last_;
        const auto more = [&]() MC_NO_THREAD_ANALYSIS { return last_ != known; };
        if (at == Time::max()) changed_.wait(lock, stop, more);
        else changed_.wait_until(lock, stop, std::max(at, hooks_.clock() + 10ms), more);
    }
}

}  // namespace mooncake::store
