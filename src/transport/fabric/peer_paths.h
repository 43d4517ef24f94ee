// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/thread_annotations.h"
#include "transport/fabric/path.h"
#include "transport/fabric/rail.h"
#include "transport/fabric/remote_rails.h"

namespace mooncake::fabric {

/// An endpoint of a peer's rail, as one of our rails sends to it. Guarded by the peer's lock; made and ended under the rail's.
struct Route {
    uint32_t rail = 0;    // ours
    uint32_t remote = 0;  // the peer's
    uint64_t epoch = 0;   // of the endpoint
    AddressHandle address = 0;
    uint32_t in_flight = 0;
    Time progress{};          // when something was last heard, or the first of what is in flight was posted
    Time connecting_since{};  // "again" since then although nothing is in flight
    Time look_at{};           // when to ask over the control plane whether the endpoint still is that
    Time retry_at{};
    Duration backoff{};

    static constexpr Duration kBackoffMax = 5ms;

    /// Something is posted.
    void begin(Time now) noexcept {
        if (in_flight++ == 0) progress = now;
    }
    void end() noexcept { --in_flight; }
    /// Something arrived.
    void connected() noexcept {
        connecting_since = Time{};
        backoff = {};
    }
    /// "Again", although nothing is in flight: not before retry_at. True: it takes so long that the endpoint may be another by now.
    bool postpone(Time now) noexcept;
    /// Nothing is under way, and nothing was for that long.
    bool is_idle(Time now, Duration limit) const noexcept {
        return in_flight == 0 && connecting_since == Time{} && now - progress >= limit;
    }
};

/// The way from one of our rails to one of a peer's.
struct Path {
    PathHealth health;
    std::unique_ptr<Route> route;  // null until used
    Time suspended{};              // something failed then: not used until the control plane has answered
    bool compatible = false;       // constant
};

/// Paths by our rail and PathState.
using PathCounts = std::vector<std::array<int64_t, 4>>;

/// All paths to one peer. A route lives until nothing of it is in flight, also after another has taken its place. Not thread-safe: belongs to
/// the peer; what takes a Rail needs that one's lock as well.
class PeerPaths {
public:
    /// `remotes`, `profile` and `time` outlive it.
    PeerPaths(std::span<Rail* const> rails, const RemoteRails& remotes, const ProviderProfile& profile, const TimeSource& time);

    /// From one of our rails, by the peer's.
    std::span<Path> from(uint32_t rail) noexcept { return rails_[rail].paths; }
    Path& at(uint32_t rail, uint32_t remote) noexcept { return rails_[rail].paths[remote]; }
    bool any_compatible() const noexcept;
    bool any_usable() const noexcept;
    bool any_ready() const noexcept;
    void count(PathCounts& counts) const;

    /// Where the target's rail has an endpoint that we can address: a route to that one.
    bool open(Rail& rail, uint32_t remote) MC_REQUIRES(rail.mutex());
    /// Ends the routes that others have replaced, as far as nothing is in flight.
    void close_replaced(Rail& rail) MC_REQUIRES(rail.mutex());
    /// Ends all routes, as far as nothing is in flight.
    void close_all(Rail& rail) MC_REQUIRES(rail.mutex());
    /// Ends routes that nobody has used for long; the next use makes them anew.
    void forget_idle(Rail& rail, Time now) MC_REQUIRES(rail.mutex());

    /// A path from this rail of ours stalled: it may be the rail. Not where nothing else is left.
    void distrust(uint32_t rail, Time now);
    /// The target's rail has another endpoint.
    void renew(uint32_t remote);
    /// The control plane has answered what was asked then.
    void answered(Time asked);

private:
    struct FromRail {
        std::vector<Path> paths;                       // by the peer's rail
        std::vector<std::unique_ptr<Route>> replaced;  // something of them may be in flight
        Time forget_at{};                              // when to look for idle paths
    };

    const RemoteRails& remotes_;
    const ProviderProfile& profile_;
    const TimeSource& time_;
    std::vector<FromRail> rails_;
};

}  // namespace mooncake::fabric
