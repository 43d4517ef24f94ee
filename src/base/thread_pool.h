// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/fork.h"
#include "base/thread_annotations.h"
#include "base/time.h"

namespace mooncake {

/// A bounded number of threads for what may block. They start when there is work, and leave when there was none for a while; only the
/// first stays. A crowd of short tasks gets a few threads. While there are no more than those, another one watches: as soon as they get
/// nowhere it starts one for each task that waits. Those leave as soon as they find nothing to do. A thread that cannot be started is done
/// without as long as there is another.
///
/// Tasks under the same key run one after the other, in order: however many wait for the same slow peer, they take one thread
/// between them, and everybody else's go on. Thread-safe. In a forked child every call does nothing.
class MC_EXPORT ThreadPool {
public:
    using Task = std::function<void()>;
    using Key = uint64_t;
    static constexpr Key kNoKey = 0;  // waits for nobody

    struct Options {
        std::string name;  // of the threads, at most 15 characters
        size_t threads_max = 1;
        size_t tasks_max = SIZE_MAX;  // that wait
        Duration idle_time = 10s;     // before a thread leaves
        size_t threads_few = 4;       // more of them only for tasks that block
        Duration stuck_time = 10ms;   // that is, while no task was taken or done for so long
    };

    explicit ThreadPool(Options options) : options_(std::move(options)) {}
    ~ThreadPool() { stop(); }
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    /// Starts the first thread now, so that no post() fails for want of one. kUnavailable when there is none to be had.
    Result<> start();
    /// kUnavailable: stopped, or there is no thread and none can be started. kNoSpace: too many wait. The task is dropped then, as when it throws
    /// for want of memory.
    Result<> post(Task task, Key key = kNoKey);
    /// Drops what waits, asks what runs to stop, and waits for it. Idempotent. Not from one of its own threads.
    void stop();
    /// Asked to stop with the pool; for tasks that take long.
    std::stop_token stop_token() const noexcept { return stop_.get_token(); }

private:
    struct Waiting {
        Task task;
        Key key = kNoKey;
    };
    using Line = std::list<Waiting>;  // whose entries move from one to the other without memory
    using Threads = std::list<std::jthread>;

    Result<> add_thread(bool watches = false) noexcept MC_REQUIRES(mutex_);
    /// For a task that is about to be posted and finds nobody idle.
    Result<> provide_thread() MC_REQUIRES(mutex_);
    /// Until nothing waits or, the others being stuck, there is a thread for all that does.
    void watch();
    void run(Threads::iterator self, bool watches);
    /// False when the thread is to leave.
    bool next(Threads::iterator self, Waiting& taken);
    void finished(Key key);
    bool forked() const noexcept { return fork_generation() != born_; }

    const Options options_;
    const uint32_t born_ = fork_generation();
    std::stop_source stop_;
    Mutex mutex_;
    std::condition_variable_any wake_, stop_watching_;
    Line ready_ MC_GUARDED_BY(mutex_);                            // of each key at most one
    std::unordered_map<Key, Line> behind_ MC_GUARDED_BY(mutex_);  // for each key in ready_ or running: what comes after
    size_t waiting_ MC_GUARDED_BY(mutex_) = 0;                    // tasks in both
    size_t idle_ MC_GUARDED_BY(mutex_) = 0;
    bool watched_ MC_GUARDED_BY(mutex_) = false;  // a thread was started to watch the others, or does
    Time progress_ MC_GUARDED_BY(mutex_){};       // when a task was last taken or done
    bool stopped_ MC_GUARDED_BY(mutex_) = false;
    Threads threads_ MC_GUARDED_BY(mutex_);
    Threads left_ MC_GUARDED_BY(mutex_);  // to be joined
};

}  // namespace mooncake
