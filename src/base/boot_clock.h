// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ctime>

#include "base/time.h"

namespace mooncake {

/// As Clock, but it also counts the time for which the machine was suspended. For promises to others, whose clocks went on meanwhile.
struct BootClock {
    using duration = Duration;
    using rep = duration::rep;
    using period = duration::period;
    using time_point = std::chrono::time_point<BootClock, duration>;
    static constexpr bool is_steady = true;

    static time_point now() noexcept {
        timespec at{};
        ::clock_gettime(CLOCK_BOOTTIME, &at);
        return time_point(std::chrono::seconds(at.tv_sec) + std::chrono::nanoseconds(at.tv_nsec));
    }
};
using BootTime = BootClock::time_point;

}  // namespace mooncake
