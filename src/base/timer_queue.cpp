// SPDX-License-Identifier: Apache-2.0
#include "base/timer_queue.h"

#include "base/thread.h"

namespace mooncake {

Result<> TimerQueue::start() {
    if (forked()) return fail(Code::kUnavailable, "the thread {} belongs to the parent process", name_);
    Lock lock(mutex_);
    if (stopped_) return fail(Code::kUnavailable, "the thread {} has been stopped", name_);
    return ensure_thread();
}

Result<> TimerQueue::ensure_thread() {
    if (thread_.joinable()) return {};
    MC_ASSIGN_OR_RETURN(thread_, try_start_thread(name_, [this] { run(); }));
    return {};
}

TimerQueue::TimerId TimerQueue::at(Time time, Task task) {
    if (forked()) return 0;
    Lock lock(mutex_);
    if (stopped_ || !ensure_thread()) return 0;
    const TimerId id = next_timer_++;
    const bool first = timers_.empty() || time < timers_.begin()->first.first;
    timers_.emplace(std::pair(time, id), std::move(task));
    times_.emplace(id, time);
    if (first) wake_.notify_all();
    return id;
}

bool TimerQueue::cancel(TimerId timer) {
    if (forked()) return false;
    Task dropped;  // destroyed outside the lock: it may own the last reference to something large
    Lock lock(mutex_);
    const auto time = times_.find(timer);
    if (time == times_.end()) return false;
    const auto found = timers_.find({time->second, timer});
    dropped = std::move(found->second);
    timers_.erase(found);
    times_.erase(time);
    return true;
}

void TimerQueue::run() {
    while (const Task task = next()) task();
}

TimerQueue::Task TimerQueue::next() {
    Lock lock(mutex_);
    for (;;) {
        if (stopped_) return nullptr;
        if (timers_.empty()) {
            wake_.wait(mutex_);
            continue;
        }
        const Time end = timers_.begin()->first.first;  // a copy: the timer may go while we wait
        if (end > Clock::now()) {
            wake_.wait_until(mutex_, end);
            continue;
        }
        auto due = timers_.extract(timers_.begin());
        times_.erase(due.key().second);
        return std::move(due.mapped());
    }
}

void TimerQueue::stop() {
    if (forked()) {
        (void)new std::jthread(std::move(thread_));  // the parent's
        return;
    }
    std::map<std::pair<Time, TimerId>, Task> timers;  // dropped outside the lock, after the thread
    std::jthread thread;
    Lock lock(mutex_);
    stopped_ = true;
    timers.swap(timers_);
    times_.clear();
    thread.swap(thread_);
    wake_.notify_all();
}

}  // namespace mooncake
