// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "base/fork.h"
#include "base/thread_annotations.h"
#include "base/time.h"
#include "net/socket.h"
#include "transport/tcp/policy.h"

struct epoll_event;

namespace mooncake::tcp {

/// Whatever wants to be told about its socket. Called on the I/O thread, one call at a time per thread.
class IoHandler {
public:
    virtual void on_ready(uint32_t epoll_events) = 0;
    /// Looks without being told whether something has come, and does what on_ready() would. False: nothing, or it does not look.
    virtual bool poll() { return false; }
    /// About every kTick while somebody wants ticks.
    virtual void on_tick(Time) {}
    /// One of the above threw, since there is no memory: ends what this handler stands for. May be destroyed within the call.
    virtual void on_exception() noexcept = 0;

protected:
    ~IoHandler() = default;
};

/// One epoll loop. After activity it spins for a while, as long as that pays off, before it blocks; without activity it costs
/// nothing. Thread-safe. Handlers are borrowed from add() to remove().
class IoThread {
public:
    using Token = uint64_t;

    static Result<std::unique_ptr<IoThread>> create(const std::string& name);
    ~IoThread();

    Result<Token> add(int fd, IoHandler& handler, uint32_t epoll_events);
    /// Also when the number stands for another socket since.
    void change(Token token, int fd, uint32_t epoll_events) noexcept;
    /// Afterwards the handler is not called any more, nor being called (unless this is the call). Before closing the socket.
    void remove(Token token, int fd) noexcept;
    /// Has on_ready(0) called soon, if the handler is still there then.
    void wake(Token token) noexcept;
    /// Ticks go to all handlers while the sum is positive.
    void want_ticks(int change) noexcept { ticks_wanted_.fetch_add(change, std::memory_order_relaxed); }
    /// Ends and joins the thread. Idempotent.
    void stop() noexcept;

private:
    IoThread(net::Socket epoll, net::Socket wake) : epoll_(std::move(epoll)), wake_(std::move(wake)) {}

    void run(const std::stop_token& stop);
    /// 0: somebody who was asked had something to do.
    int wait_for_events(epoll_event* events, int count);
    bool poll_recent();
    IoHandler* begin(Token token);
    void end();
    template <typename Call>
    void call(Token token, const Call& call);
    void tick(Time now);
    void call_woken();

    const net::Socket epoll_;  // closed in a forked child, as sockets are
    const net::Socket wake_;   // eventfd
    std::atomic<int> ticks_wanted_{0};

    // Only the thread itself
    SpinPolicy spin_{kIoSpin};
    Time next_tick_{};
    Token recent_ = 0;  // the only one who had something to do last time; 0: nobody, or several had
    int polled_ = 0;    // how often in a row that one had, without the others being asked

    Mutex mutex_;
    std::condition_variable_any idle_;
    std::unordered_map<Token, IoHandler*> handlers_ MC_GUARDED_BY(mutex_);
    Token next_token_ MC_GUARDED_BY(mutex_) = 1;
    Token running_ MC_GUARDED_BY(mutex_) = 0;
    std::vector<Token> woken_ MC_GUARDED_BY(mutex_);  // each once; there is room for all

    std::jthread thread_;
};

}  // namespace mooncake::tcp
