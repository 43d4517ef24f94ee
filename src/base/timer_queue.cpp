// SPDX-License-Identifier: Apache-2.0
#include "base/timer_queue.h"

#include <new>

#include "base/log.h"
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

TimerQueue::TimerId TimerQueue::at(Time time, Task task, Duration again) { return add(time, {.task = std::move(task), .pause = again}); }

TimerQueue::TimerId TimerQueue::every(Duration pause, Task task) {
    return add(Clock::now() + pause, {.task = std::move(task), .pause = pause});
}

TimerQueue::TimerId TimerQueue::add(Time time, Timer timer) {
    if (forked()) return 0;
    Lock lock(mutex_);
    if (stopped_ || !ensure_thread()) return 0;
    const TimerId id = next_timer_++;
    const bool first = timers_.empty() || time < timers_.begin()->first.first;
    const auto listed = times_.emplace(id, time).first;
    try {
        timers_.emplace(std::pair(time, id), std::move(timer));
    } catch (...) {
        times_.erase(listed);
        throw;
    }
    if (first) wake_.notify_all();
    return id;
}

bool TimerQueue::cancel(TimerId timer) {
    if (forked()) return false;
    Timers::node_type dropped;  // destroyed outside the lock: it may own the last reference to something large
    Lock lock(mutex_);
    const auto time = times_.find(timer);
    if (time == times_.end()) return false;
    dropped = timers_.extract({time->second, timer});
    times_.erase(time);
    return !dropped.empty();
}

void TimerQueue::run() {
    while (auto timer = next()) {
        try {
            timer.mapped().task();
        } catch (const std::bad_alloc&) {
            MC_LOG_WARNING_EVERY(1s, "a task of the thread {} broke off: out of memory", name_);
        }
        if (timer.mapped().pause > Duration::zero()) set_again(timer);
    }
}

void TimerQueue::set_again(Timers::node_type& timer) {
    Lock lock(mutex_);
    const auto time = times_.find(timer.key().second);
    if (time == times_.end()) return;  // cancelled, or stopped
    time->second = timer.key().first = Clock::now() + timer.mapped().pause;
    timers_.insert(std::move(timer));
}

TimerQueue::Timers::node_type TimerQueue::next() {
    Lock lock(mutex_);
    for (;;) {
        if (stopped_) return {};
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
        if (due.mapped().pause == Duration::zero()) times_.erase(due.key().second);
        return due;
    }
}

void TimerQueue::stop() {
    if (forked()) {
        (void)new std::jthread(std::move(thread_));  // the parent's
        return;
    }
    Timers timers;  // dropped outside the lock, after the thread
    std::jthread thread;
    Lock lock(mutex_);
    stopped_ = true;
    timers.swap(timers_);
    times_.clear();
    thread.swap(thread_);
    wake_.notify_all();
}

}  // namespace mooncake
