// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <utility>

#include "base/thread_pool.h"
#include "base/time.h"
#include "base/timer_queue.h"

namespace mooncake::fabric {

/// Who does what may block. Thread-safe.
class Tasks {
public:
    virtual void post(std::function<void()> task) = 0;

protected:
    ~Tasks() = default;
};

/// A few threads for what may block on the control plane, so that neither callers nor rails do, and one that keeps the hour. Thread-safe.
class ControlPool final : public Tasks {
public:
    /// `every` runs once per interval, from start() on.
    ControlPool(Duration interval, std::function<void()> every) : interval_(interval), every_(std::move(every)) {}
    /// What has not begun is dropped; waits for what runs.
    ~ControlPool();

    /// Starts the first threads, so that no task is lost for want of one later. kUnavailable when there are none to be had.
    Result<> start();
    /// Each user has at most one task here, so the queue is bounded by their number.
    void post(std::function<void()> task) override { (void)threads_.post(std::move(task)); }

    /// So many targets may be silent at once without delaying what others are asked. There are threads only while tasks block.
    static constexpr size_t kThreadsMax = 64;

private:
    void schedule();

    const Duration interval_;
    const std::function<void()> every_;
    ThreadPool threads_{{.name = "mc-fab-control", .threads_max = kThreadsMax}};
    TimerQueue hours_{"mc-fab-keeper"};
};

}  // namespace mooncake::fabric
