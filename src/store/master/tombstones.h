// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <unordered_map>

#include "store/master/object.h"

namespace mooncake::store {

/// Which values are gone for good although a node may still report them: one that was away, or not yet heard of by a new master, when they
/// were removed or replaced. Remembers the latest kKeysMax keys, by hash: what is forgotten may come back with such a node, a hash that
/// two keys share costs one of them a miss. Not thread-safe.
class Tombstones {
public:
    static constexpr size_t kKeysMax = 1 << 18;

    /// Values of that key with a lower generation.
    void leave(uint64_t key_hash, uint64_t generation) {
        const auto [known, fresh] = below_.try_emplace(key_hash);
        known->second.generation = generation;
        if (!fresh) {  // among the latest again
            order_.splice(order_.end(), order_, known->second.place);
            return;
        }
        known->second.place = order_.insert(order_.end(), key_hash);
        if (order_.size() <= kKeysMax) return;
        below_.erase(order_.front());
        order_.pop_front();
    }
    /// Of a tenant, or of all (0).
    void leave_for_all(TenantNumber tenant, uint64_t generation) { all_below_[tenant] = generation; }

    bool covers(TenantNumber tenant, uint64_t key_hash, uint64_t generation) const {
        if (const auto found = below_.find(key_hash); found != below_.end() && generation < found->second.generation) return true;
        for (const TenantNumber one : {TenantNumber{0}, tenant})
            if (const auto found = all_below_.find(one); found != all_below_.end() && generation < found->second) return true;
        return false;
    }
    size_t size() const noexcept { return order_.size(); }

private:
    struct Tombstone {
        uint64_t generation = 0;
        std::list<uint64_t>::iterator place;  // in order_
    };
    std::unordered_map<uint64_t, Tombstone> below_;
    std::list<uint64_t> order_;  // oldest first
    std::unordered_map<TenantNumber, uint64_t> all_below_;
};

}  // namespace mooncake::store
