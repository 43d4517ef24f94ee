// SPDX-License-Identifier: Apache-2.0
#include "store/service/job_runner.h"

#include <algorithm>
#include <mutex>

#include "base/log.h"
#include "base/thread.h"
#include "store/master/jobs/jobs.h"

namespace mooncake::store {

void JobRunner::start() {
    thread_ = start_thread("mc-master-jobs", [this](const std::stop_token& stop) { run(stop); });
}

void JobRunner::stop() {
    if (!thread_.joinable()) return;
    thread_.request_stop();
    thread_.join();
}

void JobRunner::wake() {
    Lock lock(mutex_);
    touched_.store(true, std::memory_order_relaxed);
    changed_.notify_all();
}

void JobRunner::wake_by(Time at) {
    Lock lock(mutex_);
    if (at >= due_) return;
    due_ = at;
    changed_.notify_all();
}

void JobRunner::run(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
        const Time started = Clock::now();
        const Time next = run_once();
        const Time ended = Clock::now();
        if (ended - started > kLate) lost_ += ended - started;
        wait(stop, ended, next);
    }
}

void JobRunner::forgive(Transaction& transaction) const {
    const ClientTable& clients = transaction.state().clients();
    for (ClientNumber number = 1; number < clients.limit(); ++number)
        if (clients.alive(number)) transaction.apply(ClientSeen{.client = clients[number].id, .expires = clients[number].expires + lost_});
}

Time JobRunner::run_once() {
    {
        Lock lock(mutex_);
        touched_.store(false, std::memory_order_relaxed);
        due_ = Time::max();
    }
    if (lost_ > Duration::zero())
        MC_LOG_WARNING_EVERY(10s, "the master did not run for {} ms; its clients get this time back",
                             std::chrono::duration_cast<std::chrono::milliseconds>(lost_).count());
    Time next{};
    const EvictionRun evicted = master_.run([&](Transaction& transaction, Time now) {
        if (lost_ > Duration::zero()) forgive(transaction);
        const EvictionRun result = run_jobs(transaction, now);
        hub_.drop_strangers(transaction.state());
        for (const ClientId& client : hub_.take_lost(transaction.state()))
            transaction.apply(ClientFollows{.client = client, .follows = false, .now = now});
        const Duration idle = std::clamp(transaction.state().options().client_ttl / 4, kIdleMin, kIdleMax);
        next = result.more ? now : std::min(now + idle, transaction.state().next_event());
        return result;
    });
    lost_ = Duration::zero();
    metrics_.evicted(evicted);
    wake_by(hub_.expire(Clock::now()));
    return next;
}

void JobRunner::wait(const std::stop_token& stop, Time ran, Time at) MC_NO_THREAD_ANALYSIS {
    std::unique_lock lock(mutex_);
    while (!stop.stop_requested()) {
        const bool touched = touched_.load(std::memory_order_relaxed);
        const Time job = touched ? ran + kInterval : std::max(at, ran + kInterval);
        const Time until = std::min(job, due_);
        const Time before = Clock::now();
        if (before >= until) return;
        const Time due = due_;
        changed_.wait_until(lock, stop, until,
                            [&]() MC_NO_THREAD_ANALYSIS { return touched_.load(std::memory_order_relaxed) != touched || due_ != due; });
        if (const Duration late = Clock::now() - until; late > kLate) lost_ += late;
    }
}

}  // namespace mooncake::store
