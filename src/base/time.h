// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace mooncake {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using Time = Clock::time_point;
using Duration = Clock::duration;

/// The moment by which a call must have ended. Made once at the top and handed down unchanged through every layer.
class Deadline {
public:
    static Deadline never() noexcept { return Deadline(Time::max()); }
    static Deadline after(Duration duration) noexcept {
        const Time now = Clock::now();
        return duration >= Time::max() - now ? never() : Deadline(now + duration);
    }
    explicit constexpr Deadline(Time at) noexcept : at_(at) {}

    Time at() const noexcept { return at_; }
    bool is_never() const noexcept { return at_ == Time::max(); }
    bool passed() const noexcept { return !is_never() && Clock::now() >= at_; }
    /// Never negative.
    Duration left() const noexcept {
        if (is_never()) return Duration::max();
        const Time now = Clock::now();
        return now >= at_ ? Duration::zero() : at_ - now;
    }
    /// For poll() and epoll_wait(): rounded up, capped at `max_ms`.
    int left_ms(int max_ms = 1'000'000) const noexcept {
        const Duration rest = left();
        if (rest >= std::chrono::milliseconds(max_ms)) return max_ms;
        return static_cast<int>(std::chrono::ceil<std::chrono::milliseconds>(rest).count());
    }
    Deadline earlier(Deadline other) const noexcept { return other.at_ < at_ ? other : *this; }

private:
    Time at_;
};

}  // namespace mooncake
