// SPDX-License-Identifier: Apache-2.0
#include "transport/copy_pool.h"

#include <algorithm>
#include <exception>
#include <new>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/thread.h"

namespace mooncake {

thread_local CopyPool::Step* CopyPool::current_step = nullptr;

CopyPool::CopyPool(std::string thread_name, unsigned threads_max) : thread_name_(std::move(thread_name)), threads_max_(threads_max) {}

CopyPool::~CopyPool() { stop_threads(); }

void CopyPool::stop_threads() {
    std::vector<std::jthread> threads;
    {
        Lock lock(mutex_);
        MC_CHECK(ring_.empty());
        threads.swap(threads_);
    }
    for (std::jthread& thread : threads) thread.request_stop();
}

bool CopyPool::start_threads() {
    try {
        threads_.reserve(threads_max_);  // one that was started and found no place would have to be waited for
        while (threads_.size() < std::min(threads_max_, wanted_))
            threads_.push_back(start_thread(thread_name_, [this](std::stop_token stop) { run(std::move(stop)); }));
    } catch (const std::exception& exception) {
        MC_LOG_WARNING_EVERY(10s, "cannot start a copy thread: {}", exception.what());
    }
    return !threads_.empty();
}

bool CopyPool::add(CopyQueue& queue, CopyJob& job, unsigned threads) {
    {
        Lock lock(mutex_);
        wanted_ += threads;
        if (!start_threads() || !enqueue(queue, job)) {
            wanted_ -= threads;
            return false;
        }
        job.threads_ = threads;
    }
    for (unsigned i = 0; i < threads; ++i) work_.notify_one();
    return true;
}

bool CopyPool::enqueue(CopyQueue& queue, CopyJob& job) {
    try {
        if (!queue.in_ring_) ring_.push_back(&queue);
        queue.in_ring_ = true;
        queue.jobs_.push_back(&job);
        job.queued_ = true;
    } catch (const std::bad_alloc&) {
        if (queue.in_ring_ && queue.jobs_.empty()) {
            queue.in_ring_ = false;
            ring_.remove(&queue);
        }
    }
    return job.queued_;
}

void CopyPool::unqueue(CopyQueue& queue, CopyJob& job) {
    if (!job.queued_) return;
    job.queued_ = false;
    wanted_ -= job.threads_;
    std::erase(queue.jobs_, &job);
    if (!queue.jobs_.empty()) return;
    queue.in_ring_ = false;
    std::erase(ring_, &queue);
}

void CopyPool::withdraw(CopyQueue& queue) {
    // A step of this queue that we are inside of would never end while we wait for it.
    Step* const mine = current_step != nullptr && current_step->queue == &queue ? current_step : nullptr;
    mutex_.lock();
    while (!queue.jobs_.empty()) {
        CopyJob& job = *queue.jobs_.front();
        unqueue(queue, job);
        if (job.running_ != 0) continue;
        mutex_.unlock();
        job.release();
        mutex_.lock();
    }
    while (queue.running_ != (mine != nullptr ? 1 : 0)) step_over_.wait(mutex_);
    mutex_.unlock();
    if (mine == nullptr) return;
    std::exchange(mine->job, nullptr)->release();
}

bool CopyPool::take(std::stop_token& stop, Step& step) {
    if (!work_.wait(mutex_, stop, [this]() MC_REQUIRES(mutex_) { return !ring_.empty(); })) return false;
    step.queue = ring_.front();
    ring_.splice(ring_.end(), ring_, ring_.begin());  // which needs no memory
    step.job = step.queue->jobs_.front();
    return true;
}

void CopyPool::run(Step& step) {
    ++step.queue->running_;
    ++step.job->running_;
    mutex_.unlock();
    current_step = &step;
    const bool more = step.job->step();
    current_step = nullptr;
    mutex_.lock();
    if (step.job == nullptr) return;
    if (!more) unqueue(*step.queue, *step.job);
    if (--step.job->running_ == 0 && !step.job->queued_) {
        // release() may destroy the queue's owner's last reason to wait, so the queue is left only after it.
        mutex_.unlock();
        step.job->release();
        mutex_.lock();
    }
    if (--step.queue->running_ <= 1) step_over_.notify_all();
}

void CopyPool::run(std::stop_token stop) {
    Step step;
    mutex_.lock();
    while (take(stop, step)) run(step);
    mutex_.unlock();
}

}  // namespace mooncake
