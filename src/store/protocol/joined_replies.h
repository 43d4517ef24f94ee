// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "store/protocol/objects.h"

/// Answers to the parts of a batch, put together: what holds for all items is what holds for the worst part.
namespace mooncake::store {

inline void append(CodesReply& to, CodesReply from) {
    if (to.codes.empty()) to = std::move(from);
    else to.codes.insert(to.codes.end(), from.codes.begin(), from.codes.end());
}

inline void append(ExistReply& to, ExistReply from) {
    if (to.results.empty()) {
        to = std::move(from);
        return;
    }
    to.results.insert(to.results.end(), from.results.begin(), from.results.end());
    to.soft_lease = std::min(to.soft_lease, from.soft_lease);
}

inline void append(GetReply& to, GetReply from) {
    if (to.items.empty()) {
        to = std::move(from);
        return;
    }
    const auto replicas = static_cast<uint32_t>(to.replicas.size());
    for (GetItem& item : from.items) item.first_replica += replicas;
    to.items.insert(to.items.end(), from.items.begin(), from.items.end());
    to.replicas.insert(to.replicas.end(), from.replicas.begin(), from.replicas.end());
    to.lease = std::min(to.lease, from.lease);
}

}  // namespace mooncake::store
