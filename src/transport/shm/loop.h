// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <memory>
#include <thread>
#include <unordered_map>

#include "base/error.h"
#include "base/thread_annotations.h"
#include "base/unique_fd.h"

namespace mooncake::shm {

/// One thread that sleeps until a descriptor can be read, for all connections of a transport. Thread-safe.
class Loop {
public:
    class Handler {
    public:
        /// Tells it, on the loop's thread. What throws for want of memory costs the connection, not the process.
        void tell() noexcept;

    protected:
        ~Handler() = default;

    private:
        /// Something can be read, or the other end is gone; perhaps neither. Must not block. May unwatch, also itself, and may then be
        /// destroyed within the call.
        virtual void on_ready() = 0;
        /// on_ready() threw: ends what this handler stands for. May be destroyed within the call, too.
        virtual void on_exception() noexcept = 0;
    };

    static Result<std::unique_ptr<Loop>> create();
    /// Nothing may be watched any more.
    ~Loop();
    /// Ends the thread and closes its descriptors, for good: no handler is called any more. Idempotent; nobody may be in another call.
    void stop();

    Result<> watch(int fd, Handler& handler);
    /// When it returns the handler does not run and will not (unless the handler itself asked). Idempotent.
    void unwatch(int fd);

private:
    Loop() = default;
    void run(const std::stop_token& stop);
    void dispatch(int fd);

    UniqueFd epoll_;
    UniqueFd wake_;  // an eventfd: end of the loop
    Mutex mutex_;
    std::condition_variable_any handled_;
    std::unordered_map<int, Handler*> handlers_ MC_GUARDED_BY(mutex_);
    int running_ MC_GUARDED_BY(mutex_) = -1;  // the descriptor whose handler runs
    std::jthread thread_;
};

}  // namespace mooncake::shm
