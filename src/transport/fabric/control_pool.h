// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <stop_token>
#include <thread>
#include <vector>

#include "base/thread_annotations.h"
#include "base/time.h"

namespace mooncake::fabric {

/// Who does what may block. Thread-safe.
class Tasks {
public:
    virtual void post(std::function<void()> task) = 0;

protected:
    ~Tasks() = default;
};

/// A few threads for what may block on the control plane, so that neither callers nor rails do; more are started while all of them
/// are busy, up to a limit. One of them also keeps the hour. Thread-safe.
class ControlPool final : public Tasks {
public:
    /// `every` runs once per interval.
    ControlPool(Duration interval, std::function<void()> every);
    /// What has not begun is dropped; waits for what runs.
    ~ControlPool();

    /// Each user has at most one task here, so the queue is bounded by their number.
    void post(std::function<void()> task) override;

    static constexpr size_t kThreadsMax = 8;

private:
    void work(const std::stop_token& stop);
    void keep_time(const std::stop_token& stop, Duration interval, const std::function<void()>& every);

    Mutex mutex_;
    std::condition_variable_any changed_;
    std::condition_variable_any hour_;  // nobody notifies it
    std::deque<std::function<void()>> tasks_ MC_GUARDED_BY(mutex_);
    size_t idle_ MC_GUARDED_BY(mutex_) = 0;
    bool stopping_ MC_GUARDED_BY(mutex_) = false;
    std::vector<std::jthread> threads_ MC_GUARDED_BY(mutex_);
};

}  // namespace mooncake::fabric
