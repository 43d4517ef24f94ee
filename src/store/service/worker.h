// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>

#include "base/thread.h"
#include "base/thread_annotations.h"
#include "store/service/contain.h"

namespace mooncake::store {

/// One thread for what takes too long for an I/O thread, one task after another; one that throws costs itself alone. Thread-safe; stop() once, by the owner.
class Worker {
public:
    using Task = std::function<void(const std::stop_token& stop)>;

    Worker(const std::string& name, size_t tasks_max) : tasks_max_(tasks_max) {
        thread_ = start_thread(name, [this](const std::stop_token& stop) { run(stop); });
    }
    ~Worker() { stop(); }

    /// False: too many wait already, or it was stopped.
    bool post(Task task) {
        Lock lock(mutex_);
        if (stopped_ || tasks_.size() >= tasks_max_) return false;
        tasks_.push_back(std::move(task));
        changed_.notify_all();
        return true;
    }
    /// Ends with the running task, which is asked to stop; those that wait are dropped.
    void stop() {
        {
            Lock lock(mutex_);
            stopped_ = true;
        }
        thread_.request_stop();
        if (thread_.joinable()) thread_.join();
        Lock lock(mutex_);
        tasks_.clear();
    }

private:
    void run(const std::stop_token& stop) MC_NO_THREAD_ANALYSIS {
        std::unique_lock lock(mutex_);
        while (changed_.wait(lock, stop, [this]() MC_NO_THREAD_ANALYSIS { return !tasks_.empty(); }) && !stop.stop_requested()) {
            const Task task = std::move(tasks_.front());
            tasks_.pop_front();
            lock.unlock();
            contain("a long call", [&] { task(stop); });
            lock.lock();
        }
    }

    const size_t tasks_max_;
    Mutex mutex_;
    std::condition_variable_any changed_;
    std::deque<Task> tasks_ MC_GUARDED_BY(mutex_);
    bool stopped_ MC_GUARDED_BY(mutex_) = false;
    std::jthread thread_;
};

}  // namespace mooncake::store
