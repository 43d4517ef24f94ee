// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <stop_token>
#include <thread>

#include "base/heap.h"
#include "base/thread_annotations.h"
#include "base/time.h"
#include "store/master/jobs/jobs.h"
#include "store/service/event_hub.h"
#include "store/service/locked_master.h"
#include "store/service/master_metrics.h"

namespace mooncake::store {

/// Runs the master's jobs on a thread of its own: soon after something happened, when something is due, and now and then. Time in which this
/// process did not run is not counted against its clients. A job that throws does not keep the others from running. Borrows everything.
/// Thread-safe; start() and stop() once.
class JobRunner {
public:
    JobRunner(LockedMaster& master, EventHub& hub, MasterMetrics& metrics, std::span<const Job> jobs = all_jobs())
        : master_(master), hub_(hub), metrics_(metrics), all_jobs_(jobs) {}
    ~JobRunner() { stop(); }

    void start();
    void stop();

    /// Something was done to the state: there may be something to do.
    void touch() {
        if (!touched_.load(std::memory_order_relaxed)) wake();
    }
    /// hub.expire() must be called by then.
    void wake_by(Time at);

private:
    static constexpr Duration kInterval = 10ms;  // between two runs while there is something to do
    static constexpr Duration kIdleMin = 10ms, kIdleMax = 1s;
    static constexpr Duration kLate = 200ms;  // to wake up that late means that we were stopped
    static constexpr size_t kObjectsWorthReturning = 200'000, kFollowersWorthReturning = 16;  // some ten megabytes

    void wake();
    void run(const std::stop_token& stop);
    EvictionRun run_all(Transaction& transaction, Time now) const;
    /// Returns when to run again if nothing happens before.
    Time run_once();
    void wait(const std::stop_token& stop, Time ran, Time at);
    /// Only the thread, which looks at the clock again and again: that much later than the last time, or than it was to wake up, means that it
    /// did not run meanwhile. Returns `now`.
    Time look(Time now, Time due = {});
    /// Clients get back the time for which they could not be heard.
    void forgive(Transaction& transaction) const;

    LockedMaster& master_;
    EventHub& hub_;
    MasterMetrics& metrics_;
    const std::span<const Job> all_jobs_;
    std::atomic<bool> touched_{false};  // written under mutex_
    Mutex mutex_;
    std::condition_variable_any changed_;
    Time due_ MC_GUARDED_BY(mutex_) = Time::max();  // the hub's
    Duration lost_{0};                              // the thread's: when it did not run, since the last job
    Time looked_{};                                 // the thread's: at the clock
    ShrinkWatch objects_{kObjectsWorthReturning}, followers_{kFollowersWorthReturning};
    std::jthread thread_;
};

}  // namespace mooncake::store
