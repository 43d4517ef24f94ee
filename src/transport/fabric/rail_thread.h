// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/time.h"
#include "base/unique_fd.h"

namespace mooncake::fabric {

class Rail;

/// How long a rail's thread polls before it sleeps. What peers do to us never shows in what we poll, only in that a sleep ends early.
/// So, unless told a fixed time: after a sleep that was too short to be worth it we poll for a while, twice as long after each of them
/// in a row; after a longer one we sleep again at once. A quiet process never polls, and a busy one hardly ever sleeps; nobody polls in
/// vain for much longer than there was something to do. Pure.
class Alertness {
public:
    /// Without `fixed`, as above.
    explicit Alertness(std::optional<Duration> fixed) noexcept : fixed_(fixed) {}

    /// A sleep ended because a rail had something to do.
    void woken(Duration slept) noexcept {
        budget_ = slept > kShortSleep ? Duration::zero() : std::clamp<Duration>(budget_ * 2, kBudgetMin, kBudgetMax);
    }
    /// Somebody else wants the core.
    void crowded() noexcept { budget_ = Duration::zero(); }
    Duration budget() const noexcept { return fixed_.value_or(budget_); }

    static constexpr Duration kShortSleep = 100us;
    static constexpr Duration kBudgetMin = 50us;
    static constexpr Duration kBudgetMax = 5ms;

private:
    const std::optional<Duration> fixed_;
    Duration budget_{};
};

/// Notices when a rail's descriptor is readable all the time although nothing happens: some providers' is, while a peer does not take what we
/// send, or when there is no descriptor left for a connection that came. Since what peers do to us shows in the bytes that come alone, it
/// asks for those, now and then, after many short sleeps in a row that ended for nothing. Pure.
class Futility {
public:
    /// Something was found.
    void found() noexcept {
        since_ = Time{};
        dozing_ = false;
    }
    /// A sleep ended because of a descriptor, and nothing was found.
    void in_vain(Time now, Duration slept) noexcept {
        if (slept > Alertness::kShortSleep) return found();
        if (since_ == Time{}) since_ = now;
    }
    /// Whether to ask if bytes come.
    bool wants_to_know(Time now) const noexcept { return since_ != Time{} && now - since_ >= kSuspicious && now - asked_ >= kAskEvery; }
    /// `received`: so many have; nothing: nobody knows.
    void told(Time now, std::optional<uint64_t> received) noexcept {
        dozing_ = received && received == received_;
        received_ = received;
        asked_ = now;
    }
    /// The descriptors say nothing: look now and then instead.
    bool dozing() const noexcept { return dozing_; }

    static constexpr Duration kSuspicious = 20ms, kAskEvery = 100ms;

private:
    Time since_{};
    Time asked_{};
    std::optional<uint64_t> received_;
    bool dozing_ = false;
};

/// Drives rails when nobody else does: without it, nothing that peers send to us would arrive. Polls while that pays off, then sleeps on
/// the rails' descriptors.
class RailThread {
public:
    /// `spin`: how long it polls before it sleeps; without, as long as it pays off.
    static Result<std::unique_ptr<RailThread>> start(const std::string& name, std::vector<Rail*> rails, std::optional<Duration> spin);
    /// Ends the thread.
    ~RailThread();

    /// Ends its sleep. From any thread.
    void ring() noexcept;

private:
    RailThread(std::vector<Rail*> rails, std::optional<Duration> spin, UniqueFd bell)
        : rails_(std::move(rails)), alertness_(spin), bell_(std::move(bell)) {}

    void run(const std::stop_token& stop);
    bool drive_rails(Time now);
    /// How long, if it ended because of a rail.
    std::optional<Duration> sleep();
    void woken(Duration slept, bool found, Time now);
    std::optional<uint64_t> received() const;
    bool is_driven(Time now) const noexcept;
    Duration nap(Time now);

    const std::vector<Rail*> rails_;
    Alertness alertness_;
    Futility futility_;
    const UniqueFd bell_;                // an eventfd
    std::atomic<bool> sleeping_{false};  // or about to
    int in_vain_ = 0;                    // wakes in a row for which there was no reason
    Time napping_since_{};
    std::vector<pollfd> waited_;  // the bell first
    std::jthread thread_;
};

}  // namespace mooncake::fabric
