// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/thread_annotations.h"
#include "base/time.h"
#include "store/protocol/feed.h"
#include "store/protocol/segments.h"

namespace mooncake::store {

/// What the segments of this process hold, as the master's feed tells it. When a master is lost, its successor learns it from here.
/// Thread-safe.
class Catalogue {
public:
    void add_segment(const SegmentSpec& segment);
    void remove_segment(const SegmentId& segment);

    void apply(const FeedUpdate& update, Time now);
    /// The feed broke. `orderly`: by its other end (so every word of it arrived), not by silence.
    void feed_ended(bool orderly);

    /// Hands out, in parts of at most `entries_max` objects each, everything a new master must know; borrowed for the time of the call.
    /// Stops at the first false.
    bool report(size_t entries_max, Time now, const std::function<bool(const HeldSegment&)>& part) const;

    size_t objects() const;

private:
    struct Entry {
        RangePlanned range;
        uint64_t checksum = 0;
        bool filled = false;
        Time soft_pin_end{};
    };
    struct Rest {
        uint64_t offset = 0, length = 0;
        Time until{};
    };
    struct Lent {
        SegmentSpec spec;
        std::unordered_map<uint64_t, Entry> entries;  // by generation
        std::vector<Rest> rests;
    };

    mutable Mutex mutex_;
    std::unordered_map<SegmentId, Lent> segments_ MC_GUARDED_BY(mutex_);
    bool exact_ MC_GUARDED_BY(mutex_) = true;
};

}  // namespace mooncake::store
