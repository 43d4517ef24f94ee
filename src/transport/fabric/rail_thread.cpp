// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/rail_thread.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "base/futex.h"
#include "base/thread.h"
#include "transport/fabric/rail.h"

namespace mooncake::fabric {

namespace {
constexpr Duration kDrivenSleep = 1ms;   // while a caller drives a rail
constexpr Duration kTakenSleep = 100us;  // while somebody does something to it
}  // namespace

Result<std::unique_ptr<RailThread>> RailThread::start(const std::string& name, std::vector<Rail*> rails, Duration spin) {
    UniqueFd bell(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!bell) return fail_errno(Code::kNoSpace, errno, "no eventfd");
    std::unique_ptr<RailThread> made(new RailThread(std::move(rails), spin, std::move(bell)));
    for (Rail* const rail : made->rails_) rail->set_thread(made.get());
    made->thread_ = start_thread(name, [self = made.get()](const std::stop_token& stop) { self->run(stop); });
    return made;
}

RailThread::~RailThread() {
    thread_.request_stop();
    const uint64_t one = 1;
    (void)!::write(bell_.get(), &one, sizeof one);
    if (thread_.joinable()) thread_.join();
    for (Rail* const rail : rails_) rail->set_thread(nullptr);
}

void RailThread::ring() noexcept {
    if (!sleeping_.exchange(false, std::memory_order_seq_cst)) return;
    const uint64_t one = 1;
    (void)!::write(bell_.get(), &one, sizeof one);
}

void RailThread::run(const std::stop_token& stop) {
    Time busy{};
    SpinPause pause;
    while (!stop.stop_requested()) {
        bool any = false;
        {
            Endings endings;
            for (Rail* const rail : rails_) any |= rail->drive(endings);
        }
        const Time now = Clock::now();
        if (any) busy = now;
        if (now - busy < spin_) {
            pause();
            continue;
        }
        sleep();
    }
}

void RailThread::sleep() {
    sleeping_.store(true, std::memory_order_seq_cst);
    std::vector<pollfd> waited{{.fd = bell_.get(), .events = POLLIN, .revents = 0}};
    const Time now = Clock::now();
    Time wake = Time::max();
    bool awake = false;
    for (Rail* const rail : rails_) {
        awake |= rail->announced();
        wake = std::min(wake, rail->wake_at());
        if (rail->wait_fd() < 0) continue;
        if (rail->is_driven(now)) {
            wake = std::min(wake, now + kDrivenSleep);
            continue;
        }
        switch (rail->may_sleep()) {
            case Rail::Sleep::kMay: waited.push_back({.fd = rail->wait_fd(), .events = POLLIN, .revents = 0}); break;
            case Rail::Sleep::kTaken: wake = std::min(wake, now + kTakenSleep); break;
            case Rail::Sleep::kNotNow: awake = true; break;
        }
    }
    if (!awake && wake > now) {
        const auto rest = std::chrono::duration_cast<std::chrono::nanoseconds>(wake - now);
        const timespec timeout{.tv_sec = rest.count() / 1'000'000'000, .tv_nsec = rest.count() % 1'000'000'000};
        ::ppoll(waited.data(), waited.size(), &timeout, nullptr);
    }
    if (sleeping_.exchange(false, std::memory_order_seq_cst)) return;
    uint64_t rings = 0;
    (void)!::read(bell_.get(), &rings, sizeof rings);
}

}  // namespace mooncake::fabric
