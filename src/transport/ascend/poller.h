// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <list>
#include <thread>

#include "base/thread_annotations.h"
#include "base/time.h"
#include "transport/ascend/station.h"

namespace mooncake::ascend {

/// Asks the library after requests under way, on one thread. Thread-safe.
class Poller {
public:
    struct Watched {
        Station* station = nullptr;
        XferEngine::Request request = nullptr;
        Deadline deadline = Deadline::never();
        /// Once, when the deadline passed: ends the request's link. Must not block.
        std::function<void()> abort;
        /// When the library has let go of the memory. kSuccess, or why not.
        std::function<void(abi::Status)> done;
    };
    static constexpr size_t kRequestsMax = 100;

    Result<> start();
    /// Waits for no request: their links are closed before.
    ~Poller();

    bool full() const noexcept { return count_.load(std::memory_order_relaxed) >= kRequestsMax; }
    void watch(Watched one);

private:
    void run(const std::stop_token& stop);
    /// True when it is over.
    static bool look(Watched& one);

    std::atomic<size_t> count_{0};
    Mutex mutex_;
    std::condition_variable_any added_;
    std::list<Watched> fresh_ MC_GUARDED_BY(mutex_);
    std::jthread thread_;
};

}  // namespace mooncake::ascend
