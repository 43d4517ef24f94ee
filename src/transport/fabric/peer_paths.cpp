// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/peer_paths.h"

#include <algorithm>

namespace mooncake::fabric {

namespace {

constexpr Duration kCrowdedIdle = 1s;   // of a path, where a rail has little room for further ones
constexpr Duration kForgetMax = 10s;    // between looks for idle paths
constexpr Duration kBackoffMin = 50us;  // between posts while a connection is being made
constexpr Duration kLookAfter = 10ms;   // a connection takes longer than that: is the endpoint still there?
constexpr Duration kLookMax = 1s;

}  // namespace

bool Route::postpone(Time now) noexcept {
    if (connecting_since == Time{}) {
        connecting_since = now;
        look_at = now + kLookAfter;
    }
    backoff = std::clamp<Duration>(backoff * 2, kBackoffMin, kBackoffMax);
    retry_at = now + backoff;
    if (now < look_at) return false;
    look_at = now + std::min<Duration>(now - connecting_since, kLookMax);
    return true;
}

PeerPaths::PeerPaths(std::span<Rail* const> rails, const RemoteRails& remotes, const ProviderProfile& profile, const TimeSource& time)
    : remotes_(remotes), profile_(profile), time_(time), rails_(rails.size()) {
    for (const Rail* const rail : rails) {
        std::vector<Path>& paths = rails_[rail->index()].paths;
        paths.resize(remotes_.count());
        for (uint32_t remote = 0; remote < remotes_.count(); ++remote) {
            const RailRecord& there = remotes_[remote];
            paths[remote].compatible = there.provider == rail->offer().provider && there.protocol == rail->offer().protocol &&
                                       there.address_format == rail->offer().address_format;
        }
    }
}

// ---- what there is

bool PeerPaths::any_compatible() const noexcept {
    for (const FromRail& rail : rails_)
        for (const Path& path : rail.paths)
            if (path.compatible) return true;
    return false;
}

bool PeerPaths::any_usable() const noexcept {
    for (const FromRail& rail : rails_)
        for (const Path& path : rail.paths)
            if (path.compatible && path.health.usable()) return true;
    return false;
}

bool PeerPaths::any_ready() const noexcept {
    for (const FromRail& rail : rails_)
        for (const Path& path : rail.paths)
            if (path.health.state() == PathState::kReady) return true;
    return false;
}

void PeerPaths::count(PathCounts& counts) const {
    for (size_t rail = 0; rail < rails_.size(); ++rail)
        for (const Path& path : rails_[rail].paths)
            if (path.route || !path.health.usable()) ++counts[rail][static_cast<size_t>(path.health.state())];
}

// ---- routes

bool PeerPaths::open(Rail& rail, uint32_t remote) {
    Path& path = at(rail.index(), remote);
    const RailRecord& there = remotes_[remote];
    if (path.route && path.route->epoch == there.epoch) return true;
    if (path.route) rails_[rail.index()].replaced.push_back(std::move(path.route));
    if (there.name.empty()) return false;
    const auto address = rail.insert_address(there.name);
    if (!address) return false;
    path.route = std::make_unique<Route>(
        Route{.rail = rail.index(), .remote = remote, .epoch = there.epoch, .address = *address, .progress = time_.now()});
    return true;
}

void PeerPaths::close_replaced(Rail& rail) {
    std::erase_if(rails_[rail.index()].replaced, [&](const std::unique_ptr<Route>& route) MC_REQUIRES(rail.mutex()) {
        if (route->in_flight > 0) return false;
        rail.remove_address(route->address);
        return true;
    });
}

void PeerPaths::close_all(Rail& rail) {
    for (Path& path : rails_[rail.index()].paths)
        if (path.route) rails_[rail.index()].replaced.push_back(std::move(path.route));
    close_replaced(rail);
}

void PeerPaths::forget_idle(Rail& rail, Time now) {
    FromRail& from = rails_[rail.index()];
    const bool crowded = rail.is_crowded();
    if (!crowded && now < from.forget_at) return;
    const Duration limit = crowded ? std::min<Duration>(kCrowdedIdle, profile_.idle_timeout) : profile_.idle_timeout;
    from.forget_at = now + std::min<Duration>(limit / 4, kForgetMax);
    for (Path& path : from.paths) {
        if (!path.route || !path.route->is_idle(now, limit)) continue;
        if (rail.metrics() != nullptr) rail.metrics()->forgotten->add();
        rail.remove_address(path.route->address);
        path.route.reset();
        if (path.health.usable()) path.health.renew();
    }
}

// ---- what is known of them

void PeerPaths::distrust(uint32_t rail, Time now) {
    bool others = false;
    for (size_t i = 0; i < rails_.size(); ++i)
        for (const Path& path : rails_[i].paths) others |= i != rail && path.compatible && path.health.usable();
    if (!others) return;
    for (Path& path : rails_[rail].paths)
        if (path.compatible) path.health.distrust(now);
}

void PeerPaths::renew(uint32_t remote) {
    for (FromRail& rail : rails_) rail.paths[remote].health.renew();
}

void PeerPaths::answered(Time asked) {
    for (FromRail& rail : rails_)
        for (Path& path : rail.paths)
            if (path.suspended <= asked) path.suspended = Time{};
}

}  // namespace mooncake::fabric
