// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/fork.h"
#include "base/thread_annotations.h"

namespace mooncake {

/// Looks at what nobody tells of, such as the work of a device, on one thread that starts with the first of them and sleeps while there is
/// none. Thread-safe. In a forked child every call does nothing.
class Watcher {
public:
    using Look = std::function<bool()>;  // true: look again. Must not block

    explicit Watcher(std::string thread_name) : name_(std::move(thread_name)) {}
    ~Watcher() { stop(); }
    Watcher(const Watcher&) = delete;
    Watcher& operator=(const Watcher&) = delete;

    /// False: stopped, or no thread can be started. Then it is never called.
    bool add(Look look);
    /// Drops what is left, waits for the look under way. Idempotent. Not from its own thread.
    void stop();

private:
    void run();
    bool forked() const noexcept { return fork_generation() != born_; }

    const std::string name_;
    const uint32_t born_ = fork_generation();
    Mutex mutex_;
    std::condition_variable_any wake_;
    std::vector<Look> looks_ MC_GUARDED_BY(mutex_);  // less those that the thread has at the moment
    bool stopped_ MC_GUARDED_BY(mutex_) = false;
    std::jthread thread_ MC_GUARDED_BY(mutex_);
};

}  // namespace mooncake
