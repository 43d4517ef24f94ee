// SPDX-License-Identifier: Apache-2.0
#include "engine/service.h"

#include "base/thread.h"

namespace mooncake {

bool Service::post(Task task) {
    Lock lock(mutex_);
    if (stopped_) return false;
    ready_.push_back(std::move(task));
    ensure_thread();
    wake_.notify_one();
    return true;
}

Service::TimerId Service::at(Time time, Task task) {
    Lock lock(mutex_);
    if (stopped_) return 0;
    const TimerId id = next_timer_++;
    const bool first = timers_.empty() || time < timers_.begin()->first.first;
    timers_.emplace(std::pair(time, id), std::move(task));
    timer_times_.emplace(id, time);
    ensure_thread();
    if (first) wake_.notify_one();
    return id;
}

bool Service::cancel(TimerId timer) {
    Task dropped;  // destroyed outside the lock: it may own the last reference to something large
    Lock lock(mutex_);
    const auto time = timer_times_.find(timer);
    if (time == timer_times_.end()) return false;
    const auto found = timers_.find({time->second, timer});
    dropped = std::move(found->second);
    timers_.erase(found);
    timer_times_.erase(time);
    return true;
}

void Service::ensure_thread() {
    // One idle thread is enough for what is ready now; another starts when that one is taken.
    if (idle_ > ready_.size() || (idle_ > 0 && ready_.size() <= idle_) || threads_.size() >= threads_max_) return;
    threads_.push_back(start_thread("mc-service", [this](const std::stop_token& stop) { run(stop); }));
}

void Service::run(const std::stop_token& stop) {
    while (!stop.stop_requested())
        if (const Task task = next(stop)) task();
}

Service::Task Service::next(const std::stop_token& stop) {
    Lock lock(mutex_);
    if (!timers_.empty() && timers_.begin()->first.first <= Clock::now()) {
        auto due = timers_.extract(timers_.begin());
        timer_times_.erase(due.key().second);
        ready_.push_back(std::move(due.mapped()));
    }
    if (!ready_.empty()) {
        Task task = std::move(ready_.front());
        ready_.pop_front();
        if (!ready_.empty() || !timers_.empty()) {
            // Whoever is idle takes over the clock and the rest while we are away.
            ensure_thread();
            wake_.notify_one();
        }
        return task;
    }
    ++idle_;
    const Time end = timers_.empty() ? Time::max() : timers_.begin()->first.first;  // a copy: the timer may go while we wait
    const auto something = [this, end]()
                               MC_REQUIRES(mutex_) { return !ready_.empty() || (!timers_.empty() && timers_.begin()->first.first < end); };
    if (end == Time::max()) wake_.wait(mutex_, stop, something);
    else wake_.wait_until(mutex_, stop, end, something);
    --idle_;
    return nullptr;
}

void Service::stop() {
    std::vector<std::jthread> threads;
    std::deque<Task> ready;
    std::map<std::pair<Time, TimerId>, Task> timers;
    {
        Lock lock(mutex_);
        stopped_ = true;
        threads.swap(threads_);
        ready.swap(ready_);
        timers.swap(timers_);
        timer_times_.clear();
    }
    for (auto& thread : threads) thread.request_stop();
    threads.clear();  // joins
}

}  // namespace mooncake
