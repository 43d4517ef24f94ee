// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/time.h"

namespace mooncake::fabric {

enum class PathState : uint8_t {
    kUnknown,  // nothing was sent yet
    kReady,    // the last operation succeeded
    kSuspect,  // the last one failed; still used
    kDown,     // not used; a probe now and then
};

/// What is known of the way from one of our rails to one of a peer's: whether to use it, and when to try a broken one again. Pure:
/// time is an argument. Not thread-safe: belongs to its rail.
class PathHealth {
public:
    PathState state() const noexcept { return state_; }
    bool usable() const noexcept { return state_ != PathState::kDown; }
    /// Counts up when the path goes down or is renewed: what was posted under an earlier number says nothing about it any more.
    uint32_t generation() const noexcept { return generation_; }
    uint32_t failures() const noexcept { return failures_; }  // in a row

    /// Of an operation posted under `generation`.
    void succeeded(uint32_t generation) noexcept;
    /// Three within a second, or a failed probe, take the path down. True when that happened now.
    bool failed(uint32_t generation, Time now) noexcept;
    /// A stall, or no connection in time: down at once. True when that happened now.
    bool stalled(uint32_t generation, Time now) noexcept;

    /// A neighbour stalled: while nothing is known of this one it is probed before it is used.
    void distrust(Time now) noexcept;

    /// True when a path that is down should be tried now, with one small operation; the caller then tries it (once: the next
    /// time comes only if it fails or nothing is heard of it). Its outcome goes to succeeded() or failed().
    bool begin_probe(Time now) noexcept;
    /// The probe could not even begin, for lack of a connection, which takes its time: another one then.
    void postpone_probe(Time until) noexcept;
    /// When begin_probe() will say yes; Time::max() while the path is not down.
    Time probe_at() const noexcept { return state_ == PathState::kDown ? probe_at_ : Time::max(); }

    /// The remote rail has another endpoint: everything is unknown again. That it can be reached is known least of all, so that a path which is
    /// down stays so until a probe succeeds; the next one may come at once.
    void renew() noexcept;

private:
    void go_down(Time now) noexcept;

    PathState state_ = PathState::kUnknown;
    bool probing_ = false;
    uint32_t generation_ = 1;
    uint32_t failures_ = 0;
    Time first_failure_{};  // of those in a row
    Time probe_at_{};
    Duration backoff_ = Duration::zero();
};

}  // namespace mooncake::fabric
