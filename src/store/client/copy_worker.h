// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <deque>
#include <thread>

#include "base/thread_annotations.h"
#include "store/client/client_core.h"
#include "store/protocol/feed.h"

namespace mooncake::store {

/// Carries out the copies the master orders, on a thread of its own, one after another: reads our segment's memory, writes to the
/// targets, reports. Thread-safe.
class CopyWorker {
public:
    explicit CopyWorker(ClientCore& core);
    ~CopyWorker() { stop(); }

    /// Does not wait. What does not fit the queue is reported as failed by and by; the master orders no more than it allows.
    void add(CopyOrder order);
    /// Forgets what has not begun, waits for what has. Idempotent.
    void stop();

private:
    static constexpr size_t kQueueMax = 100'000;

    void run(const std::stop_token& stop);
    /// An order counts only under the master that gave it: another numbers segments otherwise.
    struct Job {
        CopyOrder order;
        uint64_t epoch = 0;
    };
    void carry_out(const Job& job);
    StoreCode copy(const Job& job, std::string& message);

    ClientCore& core_;
    Mutex mutex_;
    std::condition_variable_any changed_;
    std::deque<Job> queue_ MC_GUARDED_BY(mutex_);
    std::jthread thread_;
};

}  // namespace mooncake::store
