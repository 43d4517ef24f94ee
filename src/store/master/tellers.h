// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "store/master/object.h"
#include "store/protocol/ids.h"

namespace mooncake::store {

/// Who told of the values of earlier lives that were copied or moved in this one, by their generation. What a node tells may turn out to be
/// outdated; then its copies are, too, unless another node has told of them by itself. Remembers kValuesMax; of more it is not known. Not thread-safe.
class Tellers {
public:
    static constexpr size_t kValuesMax = 1 << 20;  // some 100 MiB

    bool empty() const noexcept { return values_.empty() && !forgot_; }
    size_t size() const noexcept { return values_.size(); }
    /// Whether more was copied than it remembers.
    bool forgot() const noexcept { return forgot_; }
    bool knows(uint64_t generation) const { return values_.contains(generation); }

    /// A value was copied that so far lay only with those who had told of it.
    void copied(uint64_t generation, ObjectId object, std::vector<ClientId> tellers) {
        if (values_.contains(generation)) return;
        if (values_.size() >= kValuesMax) forgot_ = true;
        else values_.emplace(generation, Value{object, std::move(tellers)});
    }
    /// A node reports it: one that this life had not known before, or one that may have it from a copy.
    void reported(uint64_t generation, ObjectId object, const ClientId& client, bool by_itself) {
        const auto found = values_.find(generation);
        if (found == values_.end()) return;
        found->second.object = object;
        if (by_itself) found->second.clients.push_back(client);
    }
    /// It never comes back.
    void forget(uint64_t generation) {
        if (!values_.empty()) values_.erase(generation);
    }
    /// What these told counts no more. Returns what nobody else has told: generations with the last object that had them, in the order of generations.
    std::vector<std::pair<uint64_t, ObjectId>> withdraw(std::span<const ClientId> clients) {
        std::vector<std::pair<uint64_t, ObjectId>> doubtful;
        for (auto& [generation, value] : values_) {
            const size_t gone = std::erase_if(
                value.clients, [&](const ClientId& client) { return std::find(clients.begin(), clients.end(), client) != clients.end(); });
            if (gone != 0 && value.clients.empty()) doubtful.emplace_back(generation, value.object);
        }
        std::sort(doubtful.begin(), doubtful.end());
        return doubtful;
    }
    /// Nobody is believed any more who told of it: whoever has a copy has an outdated one.
    bool withdrawn(uint64_t generation) const {
        const auto found = values_.find(generation);
        return found != values_.end() && found->second.clients.empty();
    }

private:
    struct Value {
        ObjectId object = 0;
        std::vector<ClientId> clients;
    };

    std::unordered_map<uint64_t, Value> values_;
    bool forgot_ = false;
};

}  // namespace mooncake::store
