// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/time.h"

namespace mooncake::conductor {

struct BreakerOptions {
    uint32_t failures_to_open = 3;  // in a row
    Duration rest = 5s;             // how long an open one lets nothing through; doubles while its trials fail
    Duration rest_max = 60s;
};

enum class BreakerState : uint8_t { kClosed, kOpen, kHalfOpen };

/// Keeps requests from something that fails: closed, open after failures in a row, and half-open (one trial at a time) when it has rested.
/// Not thread-safe.
class Breaker {
public:
    explicit Breaker(const BreakerOptions& options = {}) noexcept : options_(options), rest_(options.rest) {}

    BreakerState state(Time now) const noexcept;
    /// Whether a request may go there now.
    bool allows(Time now) const noexcept;
    /// One goes there: the trial of a half-open one is taken.
    void begin(Time now) noexcept;
    void succeeded() noexcept;
    void failed(Time now) noexcept;
    /// It answered when asked how it is: what was gone may be back, so a trial need not wait for the end of the rest. Not where a trial has failed: then
    /// it answers, but does not work.
    void answered(Time now) noexcept {
        if (open_ && rest_ == options_.rest && now < open_until_) open_until_ = now;
    }
    /// The one that began neither succeeded nor failed.
    void abandoned() noexcept { trial_ = false; }

private:
    BreakerOptions options_;
    Duration rest_;
    Time open_until_{};
    uint32_t failures_ = 0;
    bool open_ = false, trial_ = false;
};

}  // namespace mooncake::conductor
