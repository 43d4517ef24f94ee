// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/io_thread.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <new>
#include <vector>

#include "base/futex.h"
#include "base/log.h"
#include "base/thread.h"

namespace mooncake::tcp {

Result<std::unique_ptr<IoThread>> IoThread::create(const std::string& name) {
    net::Socket epoll(::epoll_create1(EPOLL_CLOEXEC));
    if (!epoll) return fail_errno(Code::kUnavailable, errno, "cannot create an epoll descriptor");
    net::Socket wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!wake) return fail_errno(Code::kUnavailable, errno, "cannot create an eventfd");
    epoll_event event{.events = EPOLLIN, .data = {.u64 = 0}};
    if (::epoll_ctl(epoll.fd(), EPOLL_CTL_ADD, wake.fd(), &event) != 0)
        return fail_errno(Code::kUnavailable, errno, "cannot watch an eventfd");
    std::unique_ptr<IoThread> io(new IoThread(std::move(epoll), std::move(wake)));
    MC_ASSIGN_OR_RETURN(io->thread_, try_start_thread(name, [raw = io.get()](const std::stop_token& stop) { raw->run(stop); }));
    return io;
}

IoThread::~IoThread() { stop(); }

void IoThread::stop() noexcept {
    if (!thread_.joinable()) return;
    thread_.request_stop();
    const uint64_t one = 1;
    (void)!::write(wake_.fd(), &one, sizeof one);
    thread_.join();
}

Result<IoThread::Token> IoThread::add(int fd, IoHandler& handler, uint32_t epoll_events) {
    Token token = 0;
    {
        Lock lock(mutex_);
        token = next_token_++;
        woken_.reserve(handlers_.size() + 1);
        handlers_[token] = &handler;
    }
    epoll_event event{.events = epoll_events, .data = {.u64 = token}};
    if (::epoll_ctl(epoll_.fd(), EPOLL_CTL_ADD, fd, &event) == 0) return token;
    const int error = errno;
    Lock lock(mutex_);
    handlers_.erase(token);
    return fail_errno(Code::kUnavailable, error, "cannot watch a socket");
}

void IoThread::change(Token token, int fd, uint32_t epoll_events) noexcept {
    epoll_event event{.events = epoll_events, .data = {.u64 = token}};
    if (::epoll_ctl(epoll_.fd(), EPOLL_CTL_MOD, fd, &event) != 0 && errno == ENOENT) ::epoll_ctl(epoll_.fd(), EPOLL_CTL_ADD, fd, &event);
}

void IoThread::wake(Token token) noexcept {
    {
        Lock lock(mutex_);
        if (handlers_.find(token) == handlers_.end()) return;
        if (std::find(woken_.begin(), woken_.end(), token) == woken_.end()) woken_.push_back(token);
    }
    const uint64_t one = 1;
    (void)!::write(wake_.fd(), &one, sizeof one);
}

void IoThread::call_woken() {
    uint64_t times = 0;
    (void)!::read(wake_.fd(), &times, sizeof times);
    size_t count = 0;
    {
        Lock lock(mutex_);
        count = woken_.size();
    }
    // Not those that are woken meanwhile: the sockets have their turn first.
    for (; count > 0; --count) {
        Token token = 0;
        {
            Lock lock(mutex_);
            if (woken_.empty()) return;
            token = woken_.front();
            woken_.erase(woken_.begin());
        }
        call(token, [](IoHandler& handler) { handler.on_ready(0); });
    }
}

void IoThread::remove(Token token, int fd) noexcept {
    if (fd >= 0) ::epoll_ctl(epoll_.fd(), EPOLL_CTL_DEL, fd, nullptr);
    Lock lock(mutex_);
    handlers_.erase(token);
    std::erase(woken_, token);
    if (std::this_thread::get_id() == thread_.get_id()) return;
    while (running_ == token) idle_.wait(mutex_);
}

IoHandler* IoThread::begin(Token token) {
    Lock lock(mutex_);
    const auto found = handlers_.find(token);
    if (found == handlers_.end()) return nullptr;
    running_ = token;
    return found->second;
}

void IoThread::end() {
    Lock lock(mutex_);
    running_ = 0;
    idle_.notify_all();
}

/// The one place where our code runs on this thread: what throws costs its connection, not the process. Nothing if nobody has this token.
template <typename Call>
void IoThread::call(Token token, const Call& call) {
    IoHandler* const handler = begin(token);
    if (handler == nullptr) return;
    try {
        call(*handler);
    } catch (const std::exception& problem) {
        MC_LOG_WARNING_EVERY(1s, "tcp: a connection is given up: {}", problem.what());
        handler->on_exception();
    }
    end();
}

void IoThread::tick(Time now) {
    next_tick_ = now + kTick;
    std::vector<Token> tokens;
    try {
        Lock lock(mutex_);
        tokens.reserve(handlers_.size());
        for (const auto& [token, handler] : handlers_) tokens.push_back(token);
    } catch (const std::bad_alloc&) {
        return;  // the next tick comes
    }
    for (const Token token : tokens) call(token, [now](IoHandler& handler) { handler.on_tick(now); });
}

/// Being told by epoll costs a call more. Who has just answered a short question is likely to get the next one.
bool IoThread::poll_recent() {
    if (recent_ == 0 || polled_ >= kPollsMax) return false;
    bool found = false;
    const auto poll = [&found](IoHandler& handler) {
        for (int i = 0; i < kPolls && !found; ++i) found = handler.poll();  // which is gone, perhaps, once it has found something
    };
    call(recent_, poll);
    if (found) ++polled_;
    return found;
}

int IoThread::wait_for_events(epoll_event* events, int count) {
    const Time start = Clock::now();
    const Duration budget = spin_.budget();
    SpinPause pause;
    for (;;) {
        if (poll_recent()) {
            spin_.ended(true, budget);
            return 0;
        }
        polled_ = 0;
        const int ready = ::epoll_wait(epoll_.fd(), events, count, 0);
        if (ready != 0) {
            spin_.ended(true, budget);
            return ready;
        }
        if (Clock::now() - start >= budget) break;
        pause();
    }
    spin_.ended(false, budget);
    const bool ticking = ticks_wanted_.load(std::memory_order_relaxed) > 0;
    return ::epoll_wait(epoll_.fd(), events, count, ticking ? Deadline(next_tick_).left_ms() : -1);
}

void IoThread::run(const std::stop_token& stop) {
    std::array<epoll_event, 64> events;
    while (!stop.stop_requested()) {
        const int ready = wait_for_events(events.data(), static_cast<int>(events.size()));
        if (ready > 0) recent_ = ready == 1 ? events[0].data.u64 : 0;
        for (int i = 0; i < ready; ++i) {
            const epoll_event& event = events[static_cast<size_t>(i)];
            if (event.data.u64 == 0) call_woken();
            else call(event.data.u64, [&event](IoHandler& handler) { handler.on_ready(event.events); });
        }
        if (ticks_wanted_.load(std::memory_order_relaxed) == 0) continue;
        const Time now = Clock::now();
        if (now >= next_tick_) tick(now);
    }
}

}  // namespace mooncake::tcp
