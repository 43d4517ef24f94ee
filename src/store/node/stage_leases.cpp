// SPDX-License-Identifier: Apache-2.0
#include "store/node/stage_leases.h"

#include "base/incarnation.h"

namespace mooncake::store {

std::optional<StagingArena::Room> StageLeases::take(const std::string& peer, uint64_t bytes, Time now) {
    expire(now);
    {
        Lock lock(mutex_);
        Peer& one = peers_[peer];
        const bool enough = taken_ >= limits_.leases_max || one.leases >= limits_.leases_each ||
                            (limits_.bytes_each != 0 && one.bytes + bytes > limits_.bytes_each);
        if (enough) {
            if (one.leases == 0) peers_.erase(peer);
            return std::nullopt;
        }
        ++taken_;
        ++one.leases;
        one.bytes += bytes;
    }
    if (auto room = arena_.take(bytes)) return room;
    Lock lock(mutex_);
    leave(peer, bytes);
    return std::nullopt;
}

void StageLeases::leave(const std::string& peer, uint64_t bytes) {
    --taken_;
    const auto found = peers_.find(peer);
    if (found == peers_.end()) return;
    found->second.bytes -= bytes;
    if (--found->second.leases == 0) peers_.erase(found);
}

uint64_t StageLeases::grant(const std::string& peer, const StagingArena::Room& room, Time until) {
    Lock lock(mutex_);
    uint64_t name = random_u64();
    while (name == 0 || leases_.contains(name)) name = random_u64();
    leases_.emplace(name, Lease{.peer = peer, .room = room, .until = until});
    ends_.emplace_back(until, name);
    return name;
}

void StageLeases::give_back(const std::string& peer, const StagingArena::Room& room, Time now) {
    arena_.give_back(room, now);
    Lock lock(mutex_);
    leave(peer, room.bytes);
}

size_t StageLeases::release(std::string_view peer, const std::vector<uint64_t>& leases, Time now) {
    std::vector<StagingArena::Room> rooms;
    {
        Lock lock(mutex_);
        for (const uint64_t name : leases) {
            const auto found = leases_.find(name);
            if (found == leases_.end() || found->second.peer != peer) continue;
            rooms.push_back(found->second.room);
            leave(found->second.peer, found->second.room.bytes);
            leases_.erase(found);
        }
        while (!ends_.empty() && !leases_.contains(ends_.front().second)) ends_.pop_front();
    }
    for (const StagingArena::Room& room : rooms) arena_.give_back(room, now);
    return rooms.size();
}

size_t StageLeases::expire(Time now) {
    std::vector<StagingArena::Room> rooms;
    {
        Lock lock(mutex_);
        for (; !ends_.empty(); ends_.pop_front()) {
            const auto found = leases_.find(ends_.front().second);
            if (found == leases_.end()) continue;
            if (found->second.until > now) break;
            rooms.push_back(found->second.room);
            leave(found->second.peer, found->second.room.bytes);
            leases_.erase(found);
        }
    }
    for (const StagingArena::Room& room : rooms) arena_.give_back(room, now);
    return rooms.size();
}

size_t StageLeases::size() const {
    Lock lock(mutex_);
    return leases_.size();
}

}  // namespace mooncake::store
