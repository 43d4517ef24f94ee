// SPDX-License-Identifier: Apache-2.0
#include "transport/ascend/poller.h"

#include <algorithm>

#include "base/thread.h"

namespace mooncake::ascend {

namespace {
constexpr Duration kSpin = 50us, kPauseMin = 20us, kPauseMax = 1ms;
}

Result<> Poller::start() {
    MC_ASSIGN_OR_RETURN(thread_, try_start_thread("mc-ascend-poll", [this](const std::stop_token& stop) { run(stop); }));
    return {};
}

Poller::~Poller() {
    thread_.request_stop();
    added_.notify_all();
    if (thread_.joinable()) thread_.join();
}

void Poller::watch(Watched one) {
    Lock lock(mutex_);
    fresh_.push_back(std::move(one));
    count_.fetch_add(1, std::memory_order_relaxed);
    added_.notify_all();
}

bool Poller::look(Watched& one) {
    abi::TransferState state = abi::kWaiting;
    const abi::Status status = one.station->poll(one.request, state);
    if (status == abi::kSuccess && state == abi::kWaiting) {
        if (one.abort && one.deadline.passed()) std::exchange(one.abort, nullptr)();
        return false;
    }
    // A question that failed ends it, too: the request is gone, or nobody will ever know.
    one.done(status != abi::kSuccess ? status : state == abi::kCompleted ? abi::kSuccess : one.abort ? abi::kFailed : abi::kTimeout);
    return true;
}

void Poller::run(const std::stop_token& stop) {
    std::list<Watched> all;
    Time busy_at = Clock::now();
    Duration pause = kPauseMin;
    while (!stop.stop_requested()) {
        {
            Lock lock(mutex_);
            if (all.empty())
                while (fresh_.empty() && !stop.stop_requested()) added_.wait(mutex_);
            else if (fresh_.empty() && Clock::now() - busy_at > kSpin) {
                added_.wait_for(mutex_, pause);
                pause = std::min(pause * 2, kPauseMax);
            }
            all.splice(all.end(), fresh_);
        }
        const size_t before = all.size();
        for (auto at = all.begin(); at != all.end();) at = look(*at) ? all.erase(at) : std::next(at);
        if (all.size() == before) continue;
        count_.fetch_sub(before - all.size(), std::memory_order_relaxed);
        busy_at = Clock::now();
        pause = kPauseMin;
    }
}

}  // namespace mooncake::ascend
