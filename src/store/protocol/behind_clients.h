// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <list>
#include <unordered_map>

#include "store/protocol/ids.h"

namespace mooncake::store {

/// A moment in the history of a pool: which life of the master, and how many events it had noted by then. Lives are numbered by when they began.
struct HistoryPoint {
    uint64_t life = 0;  // 0: before all of them
    uint64_t event = 0;

    auto operator<=>(const HistoryPoint&) const = default;
};

/// Since then things were changed that the client has not heard of: what it knows is outdated unless it has heard everything up to a later moment.
struct Behind {
    ClientId client;  // none: everybody who has not followed that life
    HistoryPoint since;

    bool operator==(const Behind&) const = default;
};

/// Clients that lend memory and have not heard everything that became of it: a value that was removed or replaced meanwhile is still there
/// for them. Remembers the latest kMax, which is more than a pool loses in the life of a master. Not thread-safe.
class BehindClients {
public:
    static constexpr size_t kMax = 1 << 16;

    BehindClients() = default;
    BehindClients(BehindClients&&) noexcept = default;  // iterators stay those of the list
    BehindClients& operator=(BehindClients&&) noexcept = default;

    /// False: known already, of that moment or a later one.
    bool add(const Behind& behind) {
        if (const auto found = places_.find(behind.client); found != places_.end()) {
            if (found->second->since >= behind.since) return false;
            found->second->since = behind.since;
            return true;
        }
        if (order_.size() >= kMax) {
            places_.erase(order_.front().client);
            order_.pop_front();
        }
        places_.emplace(behind.client, order_.insert(order_.end(), behind));
        return true;
    }
    /// False: not known.
    bool erase(const ClientId& client) {
        const auto found = places_.find(client);
        if (found == places_.end()) return false;
        order_.erase(found->second);
        places_.erase(found);
        return true;
    }
    void clear() noexcept {
        places_.clear();
        order_.clear();
    }
    bool contains(const ClientId& client) const { return places_.contains(client); }
    /// The beginning of history: it is not behind.
    HistoryPoint since(const ClientId& client) const {
        const auto found = places_.find(client);
        return found == places_.end() ? HistoryPoint{} : found->second->since;
    }
    /// Oldest first.
    const std::list<Behind>& all() const noexcept { return order_; }

private:
    std::list<Behind> order_;
    std::unordered_map<ClientId, std::list<Behind>::iterator> places_;
};

}  // namespace mooncake::store
