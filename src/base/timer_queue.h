// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/fork.h"
#include "base/thread_annotations.h"
#include "base/time.h"

namespace mooncake {

/// Runs tasks at their time, on one thread that does nothing else and starts with the first of them. A task must not block, as it would
/// delay all others: what may, it hands to a ThreadPool. Thread-safe. In a forked child every call does nothing.
class MC_EXPORT TimerQueue {
public:
    using Task = std::function<void()>;
    using TimerId = uint64_t;

    explicit TimerQueue(std::string thread_name) : name_(std::move(thread_name)) {}
    ~TimerQueue() { stop(); }
    TimerQueue(const TimerQueue&) = delete;
    TimerQueue& operator=(const TimerQueue&) = delete;

    /// Starts the thread now, so that no at() fails for want of one. kUnavailable when there is none to be had.
    Result<> start();
    /// Runs the task at (not before) a time: once or, with `again`, so long after it ended again, until it is cancelled. Zero when it never will:
    /// stopped, or no thread can be started. A task that finds no memory breaks off; the others go on.
    TimerId at(Time time, Task task, Duration again = {});
    /// Runs the task again and again, so long after it ended; the first time after as long. Once it is set nothing of that needs memory. Zero as
    /// above.
    TimerId every(Duration pause, Task task);
    /// True when the task had not started and never will. One that repeats, and runs just now, does so for the last time.
    bool cancel(TimerId timer);
    /// Drops what waits, waits for the task that runs. Idempotent. Not from its own thread.
    void stop();

private:
    struct Timer {
        Task task;
        Duration pause{0};  // none: once
    };
    using Timers = std::map<std::pair<Time, TimerId>, Timer>;

    Result<> ensure_thread() MC_REQUIRES(mutex_);
    TimerId add(Time time, Timer timer);
    void run();
    /// Waits for one that is due; empty when stopped.
    Timers::node_type next();
    /// One that repeats waits for its next time.
    void set_again(Timers::node_type& timer);
    bool forked() const noexcept { return fork_generation() != born_; }

    const std::string name_;
    const uint32_t born_ = fork_generation();
    Mutex mutex_;
    std::condition_variable_any wake_;
    Timers timers_ MC_GUARDED_BY(mutex_);
    std::map<TimerId, Time> times_ MC_GUARDED_BY(mutex_);
    TimerId next_timer_ MC_GUARDED_BY(mutex_) = 1;
    bool stopped_ MC_GUARDED_BY(mutex_) = false;
    std::jthread thread_ MC_GUARDED_BY(mutex_);
};

}  // namespace mooncake
