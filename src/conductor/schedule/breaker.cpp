// SPDX-License-Identifier: Apache-2.0
#include "conductor/schedule/breaker.h"

#include <algorithm>

namespace mooncake::conductor {

BreakerState Breaker::state(Time now) const noexcept {
    if (!open_) return BreakerState::kClosed;
    return now < open_until_ ? BreakerState::kOpen : BreakerState::kHalfOpen;
}

bool Breaker::allows(Time now) const noexcept { return !open_ || (now >= open_until_ && !trial_); }

void Breaker::begin(Time now) noexcept {
    if (state(now) == BreakerState::kHalfOpen) trial_ = true;
}

void Breaker::succeeded() noexcept {
    open_ = trial_ = false;
    failures_ = 0;
    rest_ = options_.rest;
}

void Breaker::failed(Time now) noexcept {
    ++failures_;
    if (!open_ && failures_ < options_.failures_to_open) return;
    // Requests that began before it opened fail one after the other; only a trial says that the rest was too short.
    if (open_ && trial_) rest_ = std::min(rest_ * 2, options_.rest_max);
    if (!open_ || trial_) open_until_ = now + rest_;
    open_ = true;
    trial_ = false;
}

}  // namespace mooncake::conductor
