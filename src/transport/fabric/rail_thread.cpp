// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/rail_thread.h"

#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "base/thread.h"
#include "transport/fabric/endpoint_sockets.h"
#include "transport/fabric/rail.h"

namespace mooncake::fabric {

namespace {
constexpr Duration kDrivenSleep = 1ms;   // while a caller drives a rail
constexpr Duration kTakenSleep = 100us;  // while somebody does something to it
constexpr int kInVainMax = 4;            // wakes for nothing, before a descriptor is no longer trusted
constexpr Duration kNapping = 20ms;      // and how long it is not
constexpr Duration kNapMin = 20us;
constexpr Duration kNapMax = 200us;
constexpr Duration kCrowded = 200us;  // until a yielded core comes back
constexpr Duration kDoze = 1ms;       // between looks while descriptors say nothing
}  // namespace

Result<std::unique_ptr<RailThread>> RailThread::start(const std::string& name, std::vector<Rail*> rails, std::optional<Duration> spin) {
    UniqueFd bell(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!bell) return fail_errno(Code::kNoSpace, errno, "no eventfd");
    std::unique_ptr<RailThread> made(new RailThread(std::move(rails), spin, std::move(bell)));
    for (Rail* const rail : made->rails_) rail->set_thread(made.get());
    MC_ASSIGN_OR_RETURN(made->thread_, try_start_thread(name, [self = made.get()](const std::stop_token& stop) { self->run(stop); }));
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

bool RailThread::drive_rails(Time now) {
    Endings endings;
    bool any = false;
    for (Rail* const rail : rails_)
        if (!rail->is_being_driven() || rail->announced() || now >= rail->wake_at()) any |= rail->drive(endings);
    return any;
}

void RailThread::run(const std::stop_token& stop) {
    Time polling_since{};
    Time now = Clock::now();
    std::optional<Duration> slept;  // until a rail had something to do
    while (!stop.stop_requested()) {
        const bool any = drive_rails(now);
        now = Clock::now();
        if (slept) woken(*slept, any, now);
        if (slept || any) polling_since = now;
        if (any) in_vain_ = 0;
        if (any) futility_.found();
        else if (futility_.wants_to_know(now)) futility_.told(now, received());
        slept.reset();
        if (now - polling_since < alertness_.budget() && !is_driven(now) && !futility_.dozing()) {
            ::sched_yield();  // whoever we wait for may need this very core
            const Time before = std::exchange(now, Clock::now());
            if (now - before > kCrowded) alertness_.crowded();
            continue;
        }
        slept = sleep();
        now = Clock::now();
    }
}

bool RailThread::is_driven(Time now) const noexcept {
    return std::all_of(rails_.begin(), rails_.end(), [&](const Rail* rail) { return rail->is_driven(now); });
}

/// Whether the descriptor was readable for a reason shows only where we find something, or where nothing of ours may have left it so.
void RailThread::woken(Duration slept, bool found, Time now) {
    if (!found) futility_.in_vain(now, slept);
    const bool stale = std::any_of(rails_.begin(), rails_.end(), [](const Rail* rail) { return rail->signalled(); });
    if (found || !stale) alertness_.woken(slept);
    // What peers do to us never shows, but does not lead to such a state either.
    else ++in_vain_;
}

std::optional<uint64_t> RailThread::received() const {
    uint64_t total = 0;
    for (const Rail* const rail : rails_) {
        const auto here = bytes_received_at(rail->state().name);
        if (!here) return std::nullopt;
        total += *here;
    }
    return total;
}

/// Some providers leave their descriptor readable after a completion was read. Then we look by ourselves for a while, and when nothing
/// happens have it put right, which takes the rail away from others for a moment. Zero: the descriptors may be trusted.
Duration RailThread::nap(Time now) {
    if (in_vain_ < kInVainMax) return Duration::zero();
    if (in_vain_ == kInVainMax) napping_since_ = now;
    if (now - napping_since_ < kNapping) return std::min<Duration>(kNapMin * (1 << std::min(in_vain_++ - kInVainMax, 10)), kNapMax);
    for (Rail* const rail : rails_) rail->calm_wait_fd();
    in_vain_ = 0;
    return Duration::zero();
}

std::optional<Duration> RailThread::sleep() {
    sleeping_.store(true, std::memory_order_seq_cst);
    const Time now = Clock::now();
    const Duration napping = futility_.dozing() ? kDoze : nap(now);
    waited_.assign(1, {.fd = bell_.get(), .events = POLLIN, .revents = 0});
    Time wake = napping != Duration::zero() ? now + napping : Time::max();
    bool awake = false;
    std::optional<Duration> slept;
    for (Rail* const rail : rails_) {
        awake |= rail->announced();
        wake = std::min(wake, rail->wake_at());
        if (rail->wait_fd() < 0 || napping != Duration::zero()) continue;
        if (rail->is_driven(now)) {
            wake = std::min(wake, now + kDrivenSleep);
            continue;
        }
        switch (rail->may_sleep()) {
            case Rail::Sleep::kMay: waited_.push_back({.fd = rail->wait_fd(), .events = POLLIN, .revents = 0}); break;
            case Rail::Sleep::kTaken: wake = std::min(wake, now + kTakenSleep); break;
            case Rail::Sleep::kNotNow: awake = true; break;
        }
    }
    if (!awake && wake > now) {
        const auto rest = std::chrono::duration_cast<std::chrono::nanoseconds>(wake - now);
        const timespec timeout{.tv_sec = rest.count() / 1'000'000'000, .tv_nsec = rest.count() % 1'000'000'000};
        ::ppoll(waited_.data(), waited_.size(), &timeout, nullptr);
        if (std::any_of(waited_.begin() + 1, waited_.end(), [](const pollfd& one) { return one.revents != 0; })) slept = Clock::now() - now;
    }
    if (sleeping_.exchange(false, std::memory_order_seq_cst)) return slept;
    uint64_t rings = 0;
    (void)!::read(bell_.get(), &rings, sizeof rings);
    return slept;
}

}  // namespace mooncake::fabric
