// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/alarm.h"

#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace mooncake::shm {

Alarm::~Alarm() {
    int timer = -1;
    {
        Lock lock(mutex_);
        timer = timer_.fd();
    }
    if (timer >= 0) loop_.unwatch(timer);
}

Result<> Alarm::set(Duration after) {
    Lock lock(mutex_);
    if (!timer_) {
        net::Socket timer(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
        if (!timer) return fail_errno(Code::kNoSpace, errno, "no timer");
        MC_RETURN_IF_ERROR(loop_.watch(timer.fd(), *this));
        timer_ = std::move(timer);
    }
    const auto ns = std::max<int64_t>(1, std::chrono::duration_cast<std::chrono::nanoseconds>(after).count());
    const itimerspec when{.it_interval = {}, .it_value = {.tv_sec = ns / 1'000'000'000, .tv_nsec = ns % 1'000'000'000}};
    if (::timerfd_settime(timer_.fd(), 0, &when, nullptr) != 0) return fail_errno(Code::kNoSpace, errno, "no timer");
    return {};
}

void Alarm::on_ready() {
    uint64_t times = 0;
    {
        Lock lock(mutex_);
        if (::read(timer_.fd(), &times, sizeof times) != static_cast<ssize_t>(sizeof times)) return;
    }
    ring_();
}

}  // namespace mooncake::shm
