// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/time.h"

namespace mooncake::ascend {

/// What is known of the link to one engine of a peer, and what is to be done about it. No locks, no clock, no library: its owner has those.
///
///     Idle -> Connecting -> Ready(epoch) -> Draining -> Disconnecting -> Idle
///                 \-> Broken(until) -> Connecting
class RouteState {
public:
    enum class State : uint8_t { kIdle, kConnecting, kReady, kDraining, kDisconnecting, kBroken };
    enum class Step : uint8_t {
        kNothing,     // somebody is at it, or there is nothing to do
        kConnect,     // then begin_connect()
        kRun,         // then start()
        kDisconnect,  // then begin_disconnect()
        kRefuse,      // it was tried a moment ago
    };
    struct Policy {
        Duration idle_release = 0s;  // none: links stay
        Duration backoff_min = 50ms;
        Duration backoff_max = 2s;
    };

    explicit RouteState(const Policy& policy) : policy_(policy) {}

    /// `wanted`: something waits for the link.
    Step next(Time now, bool wanted) const noexcept;

    void begin_connect() noexcept { state_ = State::kConnecting; }
    void connected(Time now) noexcept;
    void connect_failed(Time now) noexcept;

    /// A transfer begins, in the epoch that counts now.
    uint64_t start() noexcept {
        ++in_flight_;
        return epoch_;
    }
    void finish(Time now) noexcept {
        --in_flight_;
        used_ = now;
    }
    /// A transfer of that epoch failed: the link is not used any more. One of an older epoch says nothing about this link.
    void fail(uint64_t epoch) noexcept {
        if (epoch == epoch_) leave();
    }
    /// Nothing begins any more; when all is over it is closed. The next who needs it makes a new one.
    void leave() noexcept {
        if (state_ == State::kReady) state_ = State::kDraining;
    }
    void begin_disconnect() noexcept { state_ = State::kDisconnecting; }
    void disconnected() noexcept { state_ = State::kIdle; }

    State state() const noexcept { return state_; }
    uint64_t epoch() const noexcept { return epoch_; }
    uint32_t in_flight() const noexcept { return in_flight_; }

private:
    const Policy policy_;
    State state_ = State::kIdle;
    uint64_t epoch_ = 0;  // of the last link
    uint32_t in_flight_ = 0;
    Time used_{};
    Time until_{};  // broken
    Duration backoff_{0};
};

}  // namespace mooncake::ascend
