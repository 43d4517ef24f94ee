// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <thread>
#include <vector>

#include "base/thread_annotations.h"
#include "base/time.h"

namespace mooncake {

/// The engine's own threads for what must not run on a caller's or an I/O thread: reconnecting, deadlines of asynchronous
/// transfers, notifications, sweeps. Threads start when there is work, up to a small bound. Thread-safe.
class Service {
public:
    using Task = std::function<void()>;
    using TimerId = uint64_t;

    explicit Service(size_t threads_max = 4) : threads_max_(threads_max) {}
    ~Service() { stop(); }

    /// False after stop(): the task is dropped.
    bool post(Task task);
    /// Runs the task once at (not before) a time. Zero after stop().
    TimerId at(Time time, Task task);
    /// True when the task had not started and never will.
    bool cancel(TimerId timer);
    /// Drops what waits, joins what runs. Idempotent. Not from one of its own threads.
    void stop();

private:
    void run(const std::stop_token& stop);
    /// Waits for one; empty when it is worth looking again.
    Task next(const std::stop_token& stop);
    void ensure_thread() MC_REQUIRES(mutex_);

    const size_t threads_max_;
    Mutex mutex_;
    std::condition_variable_any wake_;
    std::deque<Task> ready_ MC_GUARDED_BY(mutex_);  // bounded by the callers' batches: one entry per transfer at most
    std::map<std::pair<Time, TimerId>, Task> timers_ MC_GUARDED_BY(mutex_);
    std::map<TimerId, Time> timer_times_ MC_GUARDED_BY(mutex_);
    TimerId next_timer_ MC_GUARDED_BY(mutex_) = 1;
    size_t idle_ MC_GUARDED_BY(mutex_) = 0;
    bool stopped_ MC_GUARDED_BY(mutex_) = false;
    std::vector<std::jthread> threads_ MC_GUARDED_BY(mutex_);
};

}  // namespace mooncake
