// SPDX-License-Identifier: Apache-2.0
#include "store/service/job_runner.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/heap.h"
#include "base/log.h"
#include "base/memory_reserve.h"
#include "base/thread.h"
#include "store/service/contain.h"

namespace mooncake::store {

void JobRunner::start() {
    looked_ = Clock::now();  // not when the thread first runs: clients may be heard, and the process stopped, before that
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
        Time next = Clock::now() + kIdleMax;
        contain("the jobs", [&] { next = run_once(); });
        wait(stop, look(Clock::now()), next);
    }
}

Time JobRunner::look(Time now, Time due) {
    const Time expected = std::max(looked_, due);
    if (now - expected > kLate) lost_ += now - expected;
    looked_ = now;
    return now;
}

void JobRunner::forgive(Transaction& transaction) const {
    const ClientTable& clients = transaction.state().clients();
    for (ClientNumber number = 1; number < clients.limit(); ++number)
        if (clients.alive(number)) transaction.apply(ClientSeen{.client = clients[number].id, .expires = clients[number].expires + lost_});
}

EvictionRun JobRunner::run_all(Transaction& transaction, Time now) const {
    EvictionRun result;
    // As MasterCalls::require_memory(): the last memory is for what is under way, and what makes the state shrink.
    for (const Job& job : all_jobs_)
        if (!job.grows || MemoryReserve::whole()) contain(job.name, [&] { job.run(transaction, now, result); });
    return result;
}

Time JobRunner::run_once() {
    {
        Lock lock(mutex_);
        touched_.store(false, std::memory_order_relaxed);
        due_ = Time::max();
    }
    Time next{};
    Duration forgiven{0};
    size_t objects = 0;
    const EvictionRun evicted = master_.run([&](Transaction& transaction, Time now) {
        look(now);  // this very time decides who has been silent for too long
        if (lost_ > Duration::zero()) forgive(transaction);
        forgiven = std::exchange(lost_, Duration::zero());
        const EvictionRun result = run_all(transaction, now);
        hub_.drop_strangers(transaction.state());
        for (const ClientId& client : hub_.take_lost(transaction.state()))
            transaction.apply(ClientFollows{.client = client, .follows = false, .now = now});
        objects = transaction.state().objects().size();
        const Duration idle = std::clamp(transaction.state().options().client_ttl / 4, kIdleMin, kIdleMax);
        next = result.more ? now : std::min(now + idle, transaction.state().next_event());
        return result;
    });
    if (forgiven > Duration::zero())
        MC_LOG_WARNING_EVERY(10s, "the master did not run for {} ms; its clients get this time back",
                             std::chrono::duration_cast<std::chrono::milliseconds>(forgiven).count());
    metrics_.evicted(evicted);
    // Not with the lock. Either may be true, and both must be asked.
    const bool fewer_objects = objects_.shrunk(objects), fewer_followers = followers_.shrunk(hub_.followers());
    if (fewer_objects || fewer_followers) return_free_memory();
    wake_by(hub_.expire(Clock::now()));
    return next;
}

void JobRunner::wait(const std::stop_token& stop, Time ran, Time at) MC_NO_THREAD_ANALYSIS {
    std::unique_lock lock(mutex_);
    while (!stop.stop_requested()) {
        const bool touched = touched_.load(std::memory_order_relaxed);
        const Time job = touched ? ran + kInterval : std::max(at, ran + kInterval);
        const Time until = std::min(job, due_);
        const Time before = look(Clock::now());
        if (before >= until) return;
        const Time due = due_;
        changed_.wait_until(lock, stop, until,
                            [&]() MC_NO_THREAD_ANALYSIS { return touched_.load(std::memory_order_relaxed) != touched || due_ != due; });
        look(Clock::now(), until);
    }
}

}  // namespace mooncake::store
