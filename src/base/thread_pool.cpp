// SPDX-License-Identifier: Apache-2.0
#include "base/thread_pool.h"

#include <new>

#include "base/log.h"
#include "base/thread.h"

namespace mooncake {

Result<> ThreadPool::start() {
    if (forked()) return fail(Code::kUnavailable, "the threads {} belong to the parent process", options_.name);
    Lock lock(mutex_);
    if (stopped_) return fail(Code::kUnavailable, "the threads {} have been stopped", options_.name);
    return threads_.empty() ? add_thread() : Result<>();
}

Result<> ThreadPool::add_thread(bool watches) {
    const auto self = threads_.emplace(threads_.end());
    auto started = try_start_thread(options_.name, [this, self, watches] { run(self, watches); });
    if (!started) {
        threads_.erase(self);
        return Unexpected(std::move(started).error());
    }
    *self = std::move(*started);
    return {};
}

Result<> ThreadPool::provide_thread() {
    if (threads_.size() >= options_.threads_max || watched_) return {};
    watched_ = threads_.size() >= options_.threads_few;
    if (watched_) progress_ = Clock::now();  // those who are just being woken have their time, too
    auto added = add_thread(watched_);
    if (added) return added;
    watched_ = false;
    return threads_.empty() ? std::move(added) : Result<>();
}

void ThreadPool::watch() {
    Lock lock(mutex_);
    while (!stopped_ && !ready_.empty()) {
        const Time stuck = progress_ + options_.stuck_time;
        if (Clock::now() < stuck) {
            stop_watching_.wait_until(mutex_, stuck);
            continue;
        }
        // One task is for us.
        for (size_t missing = ready_.size() - 1; missing > 0 && threads_.size() < options_.threads_max && add_thread(); --missing) continue;
        break;
    }
    watched_ = false;
}

Result<> ThreadPool::post(Task task, Key key) {
    if (forked()) return fail(Code::kUnavailable, "the threads {} belong to the parent process", options_.name);
    Threads left;  // joined outside the lock
    Lock lock(mutex_);
    if (stopped_) return fail(Code::kUnavailable, "the threads {} have been stopped", options_.name);
    if (waiting_ >= options_.tasks_max) return fail(Code::kNoSpace, "{} tasks wait for the threads {}", waiting_, options_.name);
    left.swap(left_);
    if (key != kNoKey) {
        const auto [line, first] = behind_.try_emplace(key);
        if (!first) {
            line->second.push_back(std::move(task));
            ++waiting_;
            return {};
        }
    }
    if (auto provided = ready_.size() >= idle_ ? provide_thread() : Result<>(); !provided) {
        behind_.erase(key);
        return provided;
    }
    ready_.push_back({.task = std::move(task), .key = key});
    ++waiting_;
    wake_.notify_one();
    return {};
}

void ThreadPool::run(Threads::iterator self, bool watches) {
    if (watches) watch();
    for (;;) {
        Waiting taken;
        if (!next(self, taken)) return;
        try {
            taken.task();
        } catch (const std::bad_alloc&) {
            MC_LOG_WARNING_EVERY(1s, "a task of the threads {} broke off: out of memory", options_.name);
        }
        taken.task = nullptr;  // what it owned goes before the next of its key begins
        finished(taken.key);
    }
}

bool ThreadPool::next(Threads::iterator self, Waiting& taken) {
    Lock lock(mutex_);
    for (Time idle_end = Clock::now() + options_.idle_time; ready_.empty();) {
        if (stopped_) return false;
        if (threads_.size() > options_.threads_few) {
            left_.splice(left_.end(), threads_, self);
            return false;
        }
        ++idle_;
        const bool waited = wake_.wait_until(mutex_, idle_end) == std::cv_status::timeout;
        --idle_;
        if (!waited || !ready_.empty() || stopped_) continue;
        if (threads_.size() > 1) {
            left_.splice(left_.end(), threads_, self);
            return false;
        }
        idle_end = Clock::now() + options_.idle_time;
    }
    if (stopped_) return false;
    taken = std::move(ready_.front());
    ready_.pop_front();
    --waiting_;
    progress_ = Clock::now();
    return true;
}

void ThreadPool::finished(Key key) {
    Lock lock(mutex_);
    progress_ = Clock::now();
    if (key == kNoKey) return;
    const auto line = behind_.find(key);
    if (line == behind_.end()) return;  // stopped
    if (line->second.empty()) {
        behind_.erase(line);
        return;
    }
    // Behind everybody else's: one key cannot keep the others waiting.
    ready_.push_back({.task = std::move(line->second.front()), .key = key});
    line->second.pop_front();
}

void ThreadPool::stop() {
    if (forked()) {
        // They are the parent's; to wait for them, or to destroy them, would be the end of us.
        (void)new Threads(std::move(threads_));
        (void)new Threads(std::move(left_));
        return;
    }
    Threads threads, left;
    std::deque<Waiting> ready;
    std::unordered_map<Key, std::deque<Task>> behind;
    {
        Lock lock(mutex_);
        stopped_ = true;
        threads.swap(threads_);
        left.swap(left_);
        ready.swap(ready_);
        behind.swap(behind_);
        waiting_ = 0;
        wake_.notify_all();
        stop_watching_.notify_all();
    }
    stop_.request_stop();
    // Here the threads are joined, then what waited is dropped: it may own the last reference to something large.
}

}  // namespace mooncake
