// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <unordered_set>

#include "store/protocol/ids.h"

namespace mooncake::store {

/// Segments that their nodes have unmounted, the latest kKept. A mount that was sent before its unmount, or twice, may arrive after it;
/// nobody would ever unmount what it brings. Ids are never used again. Not thread-safe.
class UnwantedSegments {
public:
    static constexpr size_t kKept = 4096;

    void add(const SegmentId& segment) {
        if (!known_.insert(segment).second) return;
        order_.push_back(segment);
        if (order_.size() <= kKept) return;
        known_.erase(order_.front());
        order_.pop_front();
    }
    bool contains(const SegmentId& segment) const { return known_.contains(segment); }
    size_t size() const noexcept { return order_.size(); }

private:
    std::unordered_set<SegmentId> known_;
    std::deque<SegmentId> order_;  // oldest first
};

}  // namespace mooncake::store
