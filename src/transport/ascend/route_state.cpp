// SPDX-License-Identifier: Apache-2.0
#include "transport/ascend/route_state.h"

#include <algorithm>

namespace mooncake::ascend {

RouteState::Step RouteState::next(Time now, bool wanted) const noexcept {
    switch (state_) {
        case State::kIdle: return wanted ? Step::kConnect : Step::kNothing;
        case State::kBroken:
            if (!wanted) return Step::kNothing;
            return now < until_ ? Step::kRefuse : Step::kConnect;
        case State::kReady:
            if (wanted) return Step::kRun;
            if (policy_.idle_release > 0s && in_flight_ == 0 && now - used_ >= policy_.idle_release) return Step::kDisconnect;
            return Step::kNothing;
        case State::kDraining: return in_flight_ == 0 ? Step::kDisconnect : Step::kNothing;
        case State::kConnecting:
        case State::kDisconnecting: return Step::kNothing;
    }
    return Step::kNothing;
}

void RouteState::connected(Time now) noexcept {
    state_ = State::kReady;
    ++epoch_;
    used_ = now;
    backoff_ = 0s;
}

void RouteState::connect_failed(Time now) noexcept {
    state_ = State::kBroken;
    backoff_ = std::clamp(backoff_ * 2, policy_.backoff_min, policy_.backoff_max);
    until_ = now + backoff_;
}

}  // namespace mooncake::ascend
