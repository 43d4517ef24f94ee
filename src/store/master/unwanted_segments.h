// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <unordered_set>

#include "store/protocol/ids.h"

namespace mooncake::store {

/// Segments that their nodes have unmounted, the latest kKept. A mount that was sent before its unmount, or twice, may arrive after it;
/// nobody would ever unmount what it brings. Ids are never used again by the same client; a disk keeps its id from one life of its node to the next. Not
/// thread-safe.
class UnwantedSegments {
public:
    static constexpr size_t kKept = 4096;

    /// What a segment of that client's is known by here.
    static SegmentId of(const SegmentId& segment, const ClientId& client) {
        return {segment.high ^ client.high * 0x9e3779b97f4a7c15, segment.low ^ client.low * 0xff51afd7ed558ccd};
    }

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
