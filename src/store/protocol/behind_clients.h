// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <list>
#include <unordered_map>

#include "store/protocol/ids.h"

namespace mooncake::store {

/// Clients that lend memory and have not heard everything that became of it: a value that was removed or replaced meanwhile is still there
/// for them. Remembers the latest kMax, which is more than a pool loses in the life of a master. Not thread-safe.
class BehindClients {
public:
    static constexpr size_t kMax = 1 << 16;

    /// False: known already.
    bool add(const ClientId& client) {
        if (places_.contains(client)) return false;
        if (order_.size() >= kMax) {
            places_.erase(order_.front());
            order_.pop_front();
        }
        places_.emplace(client, order_.insert(order_.end(), client));
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
    /// Oldest first.
    const std::list<ClientId>& all() const noexcept { return order_; }

private:
    std::list<ClientId> order_;
    std::unordered_map<ClientId, std::list<ClientId>::iterator> places_;
};

}  // namespace mooncake::store
