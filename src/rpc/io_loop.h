// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/error.h"
#include "base/time.h"

namespace mooncake::rpc {

/// Told by a Watch that its descriptor is ready.
class IoHandler {
public:
    virtual ~IoHandler() = default;
    virtual void on_readable() = 0;
    virtual void on_writable() = 0;
};

/// One thread that waits for descriptors and timers and runs tasks one after another. The only place that knows Asio. Held by
/// shared_ptr: objects that outlive the thread (an unanswered Responder) may still post, in vain.
class IoLoop {
public:
    static Result<std::shared_ptr<IoLoop>> start(const std::string& thread_name);
    ~IoLoop();
    IoLoop(const IoLoop&) = delete;
    IoLoop& operator=(const IoLoop&) = delete;

    using Task = std::function<void()>;
    /// Runs the task on the loop's thread, soon. False: the loop was stopped, the task is dropped. Thread-safe.
    bool post(Task task);
    bool on_loop() const noexcept;
    /// Runs `last`, which must close every Watch and Timer still in use, and joins the thread. Tasks posted before it run, later
    /// ones are refused. Needs no memory. Not from the loop's own thread. Thread-safe, idempotent.
    void stop(const Task& last);

    /// Only on the loop's thread: something is about to come. The thread looks for it this long before it sleeps, if that has paid off before.
    void stay_awake(Duration time) noexcept;

    /// Memory to receive into, for whoever runs on the loop now.
    std::span<std::byte> scratch() noexcept;

    struct Impl;

    /// Waits for one descriptor, which it borrows. Only on the loop's thread. Each wait is for one event; the handler is kept
    /// alive meanwhile.
    class Watch {
    public:
        static Result<std::unique_ptr<Watch>> open(IoLoop& loop, int fd);
        /// Forgets the descriptor; outstanding waits end without a call.
        ~Watch();
        void wait_readable(std::shared_ptr<IoHandler> handler);
        void wait_writable(std::shared_ptr<IoHandler> handler);

    private:
        struct State;
        explicit Watch(std::unique_ptr<State> state);
        std::unique_ptr<State> state_;
    };

    /// Calls back once at a time. Only on the loop's thread.
    class Timer {
    public:
        explicit Timer(IoLoop& loop);
        ~Timer();
        /// Replaces what was set before.
        void set(Time at, Task task);
        void cancel();

    private:
        struct State;
        std::shared_ptr<State> state_;  // shared with the wait under way, to see that it was replaced
    };

private:
    IoLoop();
    std::unique_ptr<Impl> impl_;
};

}  // namespace mooncake::rpc
