// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/thread_annotations.h"
#include "base/time.h"
#include "store/node/staging_arena.h"

namespace mooncake::store {

/// Who has what of the staging memory, and until when. A connection gets no more than its share, may give back only what it got, and loses what it does
/// not give back in time. Leases are named by random numbers. Thread-safe.
class StageLeases {
public:
    struct Limits {
        size_t leases_max = 65'536, leases_each = 8192;
        uint64_t bytes_each = 0;  // of one connection, at any time; 0: any
    };
    StageLeases(StagingArena& arena, Limits limits) : arena_(arena), limits_(limits) {}

    /// Takes room for `peer` before it is filled; it has no end yet. Nothing: there is none, or this one has enough.
    std::optional<StagingArena::Room> take(const std::string& peer, uint64_t bytes, Time now);
    /// It has been filled: from now on it has a name, and an end.
    uint64_t grant(const std::string& peer, const StagingArena::Room& room, Time until);
    /// It was not filled.
    void give_back(const std::string& peer, const StagingArena::Room& room, Time now);
    /// By who got them; others are left alone. Returns how many ended.
    size_t release(std::string_view peer, const std::vector<uint64_t>& leases, Time now);
    size_t expire(Time now);  // how many
    size_t size() const;

private:
    struct Lease {
        std::string peer;
        StagingArena::Room room;
        Time until{};
    };
    struct Peer {
        size_t leases = 0;
        uint64_t bytes = 0;
    };
    void leave(const std::string& peer, uint64_t bytes) MC_REQUIRES(mutex_);

    StagingArena& arena_;
    const Limits limits_;
    mutable Mutex mutex_;
    std::unordered_map<uint64_t, Lease> leases_ MC_GUARDED_BY(mutex_);
    std::unordered_map<std::string, Peer> peers_ MC_GUARDED_BY(mutex_);
    std::deque<std::pair<Time, uint64_t>> ends_ MC_GUARDED_BY(mutex_);  // in order, as all last equally long; some are released already
    size_t taken_ MC_GUARDED_BY(mutex_) = 0;                            // leases, and what is being filled
};

}  // namespace mooncake::store
