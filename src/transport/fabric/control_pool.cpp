// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/control_pool.h"

#include <mutex>

#include "base/thread.h"

namespace mooncake::fabric {

ControlPool::ControlPool(Duration interval, std::function<void()> every) {
    Lock lock(mutex_);
    threads_.push_back(start_thread(
        "mc-fab-keeper", [this, interval, every = std::move(every)](const std::stop_token& stop) { keep_time(stop, interval, every); }));
}

ControlPool::~ControlPool() {
    std::vector<std::jthread> threads;
    std::deque<std::function<void()>> dropped;
    {
        Lock lock(mutex_);
        stopping_ = true;
        threads.swap(threads_);
        dropped.swap(tasks_);
    }
    for (std::jthread& thread : threads) thread.request_stop();
}

void ControlPool::post(std::function<void()> task) {
    Lock lock(mutex_);
    if (stopping_) return;
    tasks_.push_back(std::move(task));
    if (tasks_.size() > idle_ && threads_.size() < kThreadsMax)
        threads_.push_back(start_thread("mc-fab-control", [this](const std::stop_token& stop) { work(stop); }));
    changed_.notify_one();
}

void ControlPool::work(const std::stop_token& stop) MC_NO_THREAD_ANALYSIS {
    std::unique_lock lock(mutex_);
    for (;;) {
        ++idle_;
        const bool more = changed_.wait(lock, stop, [this]() MC_NO_THREAD_ANALYSIS { return !tasks_.empty(); });
        --idle_;
        if (!more || stop.stop_requested()) return;
        auto task = std::move(tasks_.front());
        tasks_.pop_front();
        lock.unlock();
        task();
        task = nullptr;
        lock.lock();
    }
}

void ControlPool::keep_time(const std::stop_token& stop, Duration interval, const std::function<void()>& every) {
    std::unique_lock lock(mutex_);
    while (!stop.stop_requested()) {
        hour_.wait_for(lock, stop, interval, [] { return false; });
        if (stop.stop_requested()) return;
        lock.unlock();
        every();
        lock.lock();
    }
}

}  // namespace mooncake::fabric
