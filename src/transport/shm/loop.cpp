// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <array>
#include <cerrno>
#include <exception>
#include <new>
#include <system_error>

#include "base/error_copy.h"
#include "base/log.h"
#include "base/thread.h"

namespace mooncake::shm {

Result<std::unique_ptr<Loop>> Loop::create() {
    std::unique_ptr<Loop> loop(new Loop);
    loop->epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
    loop->wake_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!loop->epoll_ || !loop->wake_) return fail_errno(Code::kNoSpace, errno, "cannot open a descriptor");
    epoll_event event{.events = EPOLLIN, .data = {.fd = loop->wake_.get()}};
    if (::epoll_ctl(loop->epoll_.get(), EPOLL_CTL_ADD, loop->wake_.get(), &event) != 0)
        return fail_errno(Code::kNoSpace, errno, "cannot watch a descriptor");
    try {
        loop->thread_ = start_thread("mc-shm", [self = loop.get()](const std::stop_token& stop) { self->run(stop); });
    } catch (const std::system_error& exception) {
        return fail_errno(Code::kNoSpace, exception.code().value(), "cannot start a thread");
    }
    return loop;
}

Loop::~Loop() { stop(); }

void Loop::stop() {
    if (!thread_.joinable()) return;
    thread_.request_stop();
    const uint64_t one = 1;
    MC_CHECK(::write(wake_.get(), &one, sizeof one) == sizeof one);
    thread_.join();
    epoll_.reset();
    wake_.reset();
}

void Loop::Handler::tell() noexcept {
    try {
        on_ready();
    } catch (const std::exception& problem) {
        MC_LOG_WARNING_EVERY(1s, "shm: a connection is given up: {}", problem.what());
        on_exception();
    }
}

Result<> Loop::watch(int fd, Handler& handler) {
    Lock lock(mutex_);
    try {
        handlers_[fd] = &handler;
    } catch (const std::bad_alloc&) {
        return Unexpected(out_of_memory());
    }
    epoll_event event{.events = EPOLLIN | EPOLLRDHUP, .data = {.fd = fd}};
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0) return {};
    handlers_.erase(fd);
    return fail_errno(Code::kNoSpace, errno, "cannot watch a connection");
}

void Loop::unwatch(int fd) {
    mutex_.lock();
    if (handlers_.erase(fd) != 0) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
    if (std::this_thread::get_id() != thread_.get_id())
        while (running_ == fd) handled_.wait(mutex_);
    mutex_.unlock();
}

void Loop::dispatch(int fd) {
    Handler* handler = nullptr;
    {
        Lock lock(mutex_);
        const auto found = handlers_.find(fd);
        if (found == handlers_.end()) return;
        handler = found->second;
        running_ = fd;
    }
    handler->tell();
    {
        Lock lock(mutex_);
        running_ = -1;
    }
    handled_.notify_all();
}

void Loop::run(const std::stop_token& stop) {
    std::array<epoll_event, 64> events;
    while (!stop.stop_requested()) {
        const int count = ::epoll_wait(epoll_.get(), events.data(), events.size(), -1);
        // A descriptor unwatched and opened again by an earlier handler gets a call too many, which handlers allow.
        for (int i = 0; i < count; ++i) dispatch(events[static_cast<size_t>(i)].data.fd);
    }
}

}  // namespace mooncake::shm
