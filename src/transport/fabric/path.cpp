// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/path.h"

#include <algorithm>

namespace mooncake::fabric {

namespace {

constexpr uint32_t kFailuresMax = 3;
constexpr Duration kFailureWindow = 1s;
constexpr Duration kBackoffMin = 200ms;
constexpr Duration kBackoffMax = 10s;

}  // namespace

void PathHealth::succeeded(uint32_t generation) noexcept {
    if (generation != generation_) return;
    state_ = PathState::kReady;
    probing_ = false;
    failures_ = 0;
    backoff_ = Duration::zero();
}

bool PathHealth::failed(uint32_t generation, Time now) noexcept {
    if (generation != generation_) return false;
    if (failures_ == 0 || now - first_failure_ > kFailureWindow) {
        failures_ = 0;
        first_failure_ = now;
    }
    ++failures_;
    if (state_ == PathState::kDown) {
        if (probing_) go_down(now);
        return false;
    }
    state_ = PathState::kSuspect;
    if (failures_ < kFailuresMax) return false;
    go_down(now);
    return true;
}

bool PathHealth::stalled(uint32_t generation, Time now) noexcept {
    if (generation != generation_) return false;
    const bool was_usable = usable();
    go_down(now);
    return was_usable;
}

void PathHealth::distrust(Time now) noexcept {
    if (state_ != PathState::kUnknown) return;
    go_down(now);
    probe_at_ = now;
}

void PathHealth::go_down(Time now) noexcept {
    state_ = PathState::kDown;
    probing_ = false;
    ++generation_;
    backoff_ = std::clamp(backoff_ * 2, kBackoffMin, kBackoffMax);
    probe_at_ = now + backoff_;
}

bool PathHealth::begin_probe(Time now) noexcept {
    if (state_ != PathState::kDown || now < probe_at_) return false;
    if (probing_) backoff_ = std::min(backoff_ * 2, kBackoffMax);  // nothing was heard of the last one
    probing_ = true;
    probe_at_ = now + backoff_;
    return true;
}

void PathHealth::postpone_probe(Time until) noexcept {
    if (!probing_) return;
    probing_ = false;
    probe_at_ = until;
}

void PathHealth::renew() noexcept {
    probing_ = false;
    failures_ = 0;
    ++generation_;
    if (state_ == PathState::kDown) {
        probe_at_ = Time{};
        return;
    }
    state_ = PathState::kUnknown;
    backoff_ = Duration::zero();
}

}  // namespace mooncake::fabric
