// SPDX-License-Identifier: Apache-2.0
#include "base/thread_pool.h"

#include <new>

#include "base/error_copy.h"
#include "base/log.h"
#include "base/thread.h"

namespace mooncake {

Result<> ThreadPool::start() {
    if (forked()) return fail(Code::kUnavailable, "the threads {} belong to the parent process", options_.name);
    Lock lock(mutex_);
    if (stopped_) return fail(Code::kUnavailable, "the threads {} have been stopped", options_.name);
    return threads_.empty() ? add_thread() : Result<>();
}

Result<> ThreadPool::add_thread(bool watches) noexcept try {
    Threads made(1);
    const auto self = made.begin();
    MC_ASSIGN_OR_RETURN(*self, try_start_thread(options_.name, [this, self, watches] { run(self, watches); }));
    threads_.splice(threads_.end(), made);  // it looks for itself there under the lock
    return {};
} catch (const std::bad_alloc&) {
    return Unexpected(out_of_memory());
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
    // Made first: a key whose line was begun, and to which nothing then came, would never be served again.
    Line made;
    made.push_back({.task = std::move(task), .key = key});
    Lock lock(mutex_);
    if (stopped_) return fail(Code::kUnavailable, "the threads {} have been stopped", options_.name);
    if (waiting_ >= options_.tasks_max) return fail(Code::kNoSpace, "{} tasks wait for the threads {}", waiting_, options_.name);
    left.swap(left_);
    if (key != kNoKey) {
        const auto [line, first] = behind_.try_emplace(key);
        if (!first) {
            line->second.splice(line->second.end(), made);
            ++waiting_;
            return {};
        }
    }
    if (auto provided = ready_.size() >= idle_ ? provide_thread() : Result<>(); !provided) {
        behind_.erase(key);
        return provided;
    }
    ready_.splice(ready_.end(), made);
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
    ready_.splice(ready_.end(), line->second, line->second.begin());
}

void ThreadPool::stop() {
    if (forked()) {
        // They are the parent's; to wait for them, or to destroy them, would be the end of us.
        (void)new Threads(std::move(threads_));
        (void)new Threads(std::move(left_));
        return;
    }
    Threads threads, left;
    Line ready;
    std::unordered_map<Key, Line> behind;
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
