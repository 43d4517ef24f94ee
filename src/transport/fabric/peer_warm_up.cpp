// SPDX-License-Identifier: Apache-2.0
// Connecting ahead of the first transfer: one small read over every path that will be used first. It reads what the target keeps for that:
// memory that is lent may be gone by now, and then the read would fail although the path is good.
#include "transport/fabric/fabric_peer.h"

namespace mooncake::fabric {

namespace {

constexpr Duration kTick = 20ms;  // should a change go unnoticed

}  // namespace

Path* FabricPeer::first_path(const Rail& rail, uint32_t& remote) {
    const uint32_t count = remotes_.count();
    for (uint32_t k = 0; k < count; ++k) {
        remote = (rail.index() + k) % count;
        Path& path = paths_.at(rail.index(), remote);
        if (path.compatible && path.health.usable() && keys_.probe(remote) != nullptr) return &path;
    }
    return nullptr;
}

uint64_t FabricPeer::cold_rails() {
    uint64_t cold = 0;
    uint32_t remote = 0;
    for (const Rail* const rail : shared_.rails) {
        const Path* const path = first_path(*rail, remote);
        if (path != nullptr && path->health.state() == PathState::kUnknown) cold |= uint64_t{1} << rail->index();
    }
    return cold;
}

FabricPeer::Next FabricPeer::prepare_warm_up(Rail& rail, Flight& flight, Operation& operation) {
    const uint64_t bit = uint64_t{1} << rail.index();
    if ((to_warm_ & bit) == 0) return Next::kNothing;
    uint32_t remote = 0;
    Path* const path = first_path(rail, remote);
    const bool under_way = path != nullptr && path->route && path->route->in_flight > 0;
    if (path == nullptr || path->health.state() != PathState::kUnknown || under_way) {
        to_warm_ &= ~bit;
        return Next::kNothing;
    }
    if (path->suspended != Time{} || !is_announced(rail) || !paths_.open(rail, remote)) return Next::kLater;
    if (path->route->retry_at > shared_.time.now()) {
        rail.wake_by(path->route->retry_at);
        return Next::kLater;
    }
    if (!rail.has_room(0, share_of(rail)) || !begin_probe(rail, *path, *keys_.probe(remote), flight, operation)) return Next::kLater;
    to_warm_ &= ~bit;
    return Next::kReady;
}

Result<> FabricPeer::warm_up(Deadline deadline) MC_NO_THREAD_ANALYSIS {
    uint64_t cold = 0;
    {
        Lock lock(mutex_);
        if (broken_.load(std::memory_order_relaxed)) return Unexpected(reason_);
        cold = cold_rails();
        to_warm_ |= cold;
    }
    for (Rail* const rail : shared_.rails) {
        if ((cold >> rail->index() & 1) == 0) continue;
        rail->announce(*this);
        rail->ring();
    }
    // A path whose read fails is not unknown any more: it is tried again when it is needed.
    std::unique_lock lock(mutex_);
    while (cold_rails() != 0) {
        if (broken_.load(std::memory_order_relaxed)) return Unexpected(reason_);
        if (deadline.passed()) return fail(Code::kTimedOut, "{}: not all paths are connected", descriptor_.name);
        changed_.wait_until(lock, deadline.earlier(Deadline::after(kTick)).at());
    }
    if (broken_.load(std::memory_order_relaxed)) return Unexpected(reason_);
    return {};
}

Result<> FabricPeer::reach(Deadline deadline) MC_NO_THREAD_ANALYSIS {
    const auto reached = [this]() MC_REQUIRES(mutex_) {
        if (paths_.any_ready()) return true;
        bool known = false;
        for (uint32_t remote = 0; remote < remotes_.count(); ++remote) known |= keys_.probe(remote) != nullptr;
        return !known;  // without any memory there is nothing that could be read
    };
    {
        Lock lock(mutex_);
        to_warm_ |= cold_rails();
    }
    wake_rails();
    std::unique_lock lock(mutex_);
    while (!reached()) {
        if (broken_.load(std::memory_order_relaxed)) return Unexpected(reason_);
        if (deadline.passed()) return fail(Code::kUnavailable, "there is still no path to {}", descriptor_.name);
        changed_.wait_until(lock, deadline.earlier(Deadline::after(kTick)).at());
    }
    return {};
}

}  // namespace mooncake::fabric
