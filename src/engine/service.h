// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/thread_pool.h"
#include "base/timer_queue.h"
#include "engine/watcher.h"

namespace mooncake {

/// The engine's own threads, for what must not run on a caller's or an I/O thread. Several kinds, so that no peer's silence delays what
/// concerns another: a timer thread that never blocks, one that looks whether devices are done, threads that end transfers (they wait for a peer no longer than a fence takes), and
/// threads that wait for peers as long as a deadline allows: connecting, notifying, checking. Thread-safe.
class Service {
public:
    using Task = ThreadPool::Task;
    using Key = ThreadPool::Key;
    using TimerId = TimerQueue::TimerId;

    ~Service() { stop(); }

    /// Starts the first thread of each kind, so that later ones can be done without. kUnavailable when there are none to be had.
    Result<> start();
    /// Work that may wait for a peer. Tasks of one key (a peer) run one after the other. False after stop(): the task is dropped.
    bool post(Task task, Key key = ThreadPool::kNoKey) { return work_.post(std::move(task), key).has_value(); }
    /// Work that ends a transfer: never behind what post() was given.
    bool post_stop(Task task, Key key) { return stops_.post(std::move(task), key).has_value(); }
    /// Runs the task at (not before) a time, on the timer thread: it must not block. Once or, so long after it each time, again, until it is
    /// cancelled. Zero after stop().
    TimerId at(Time time, Task task, Duration again = {}) { return timers_.at(time, std::move(task), again); }
    /// Runs the task again and again on the timer thread, so long after it ended. Zero after stop().
    TimerId every(Duration pause, Task task) { return timers_.every(pause, std::move(task)); }
    /// Posts the task at a time. False after stop().
    bool post_at(Time time, Task task, Key key);
    /// Has `look` called again and again, some microseconds apart, until it returns false: for what nobody tells of. It must not block. False after
    /// stop(), or when there is no thread for it.
    bool watch(Watcher::Look look) { return watcher_.add(std::move(look)); }
    /// True when the timer's task had not started and never will.
    bool cancel(TimerId timer) { return timers_.cancel(timer); }
    /// Drops what waits, joins what runs. Idempotent. Not from one of its own threads.
    void stop();

    /// So many peers may be silent at once without delaying work for others.
    static constexpr size_t kThreadsMax = 64;

private:
    ThreadPool work_{{.name = "mc-service", .threads_max = kThreadsMax}};
    ThreadPool stops_{{.name = "mc-stop", .threads_max = kThreadsMax}};
    TimerQueue timers_{"mc-timer"};
    Watcher watcher_{"mc-order"};
};

}  // namespace mooncake
