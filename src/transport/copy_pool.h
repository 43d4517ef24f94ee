// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <deque>
#include <list>
#include <string>
#include <thread>
#include <vector>

#include "base/thread_annotations.h"

namespace mooncake {

/// Work made of short steps. Owned by its peer until it is add()ed to a queue; from then on also by the pool, until release().
class CopyJob {
public:
    virtual ~CopyJob() = default;
    /// Does one short piece of work. False when there was none left to begin. Several threads may be inside at once. It may end by telling
    /// somebody who, on this thread, withdraws the queue and destroys job and queue; then it returns without touching either.
    virtual bool step() noexcept = 0;
    /// Called once, by the pool: it does not touch the job any more.
    virtual void release() noexcept = 0;

private:
    friend class CopyPool;
    unsigned running_ = 0;  // guarded by the pool's mutex, as all members
    unsigned threads_ = 0;
    bool queued_ = false;
};

/// The jobs of one peer. Emptied by CopyPool::withdraw() before it is destroyed.
class CopyQueue {
    friend class CopyPool;
    std::deque<CopyJob*> jobs_;  // guarded by the pool's mutex, as all members
    unsigned running_ = 0;
    bool in_ring_ = false;
};

/// A few threads, started when first needed, that copy for submitters who do not wait, and help those with much to copy.
/// The queues take turns step by step, so no peer can starve another; within a queue the oldest job goes first.
/// Thread-safe. Every queue must be withdrawn before the pool is destroyed. The memory it holds per job is the job itself,
/// which its submitter owns, so its queues need no limit.
class CopyPool {
public:
    explicit CopyPool(std::string thread_name, unsigned threads_max = kThreadsMax);
    unsigned threads_max() const noexcept { return threads_max_; }
    ~CopyPool();
    CopyPool(const CopyPool&) = delete;
    CopyPool& operator=(const CopyPool&) = delete;

    /// `threads`: how many of ours may be woken for it. False, and the job not taken, when no thread could be started or there is no memory.
    bool add(CopyQueue& queue, CopyJob& job, unsigned threads);
    /// Takes all jobs of the queue away from the pool; no step of them runs when it returns, except one that called this itself: the
    /// pool does not touch its job and queue any more. Nothing may be added meanwhile.
    void withdraw(CopyQueue& queue);
    /// Ends the threads, until one is needed again. Every queue must be withdrawn. Not from one of them.
    void stop_threads();

    static constexpr unsigned kThreadsMax = 2;

private:
    /// The step that a thread of a pool is in.
    struct Step {
        CopyQueue* queue = nullptr;
        CopyJob* job = nullptr;  // null: withdrawn from within
    };
    static thread_local Step* current_step;

    void run(std::stop_token stop);
    void run(Step& step) MC_REQUIRES(mutex_);
    bool take(std::stop_token& stop, Step& step) MC_REQUIRES(mutex_);
    bool enqueue(CopyQueue& queue, CopyJob& job) MC_REQUIRES(mutex_);
    void unqueue(CopyQueue& queue, CopyJob& job) MC_REQUIRES(mutex_);
    bool start_threads() MC_REQUIRES(mutex_);

    const std::string thread_name_;
    const unsigned threads_max_;
    Mutex mutex_;
    std::condition_variable_any work_;
    std::condition_variable_any step_over_;
    std::list<CopyQueue*> ring_ MC_GUARDED_BY(mutex_);  // those with jobs, next one first
    unsigned wanted_ MC_GUARDED_BY(mutex_) = 0;         // threads the queued jobs asked for
    std::vector<std::jthread> threads_ MC_GUARDED_BY(mutex_);
};

}  // namespace mooncake
