// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>

#include "base/time.h"
#include "store/protocol/ids.h"

namespace mooncake::store {

/// Nodes that may come back with values that the state does not know: those that were given up in this life, for kReturnWindow, and those of
/// earlier lives that have yet to report, for as long from the first write on. Meanwhile a write of a key that has no value may replace one that they
/// hold, so it leaves a tombstone: it is watched. Once a write was not watched, what an absent node reports may be older than that one's value, and is not
/// believed any more. Not thread-safe.
class AbsentNodes {
public:
    static constexpr Duration kReturnWindow = 10min;
    static constexpr uint64_t kUnheardMax = 65'536;  // writes that are watched although nobody has told of an earlier life
    static constexpr size_t kSegmentsMax = 4096;     // that were given up; of more, the latest

    /// Given up with all it held, which the state had known.
    void left(const SegmentId& segment, Time now) {
        back(segment);
        segments_.push_back({segment, now});
        if (segments_.size() > kSegmentsMax) segments_.pop_front();
    }
    /// Given up again before it had told what it holds.
    void still_away(const SegmentId& segment, Time now) {
        if (contains(segment)) left(segment, now);
    }
    /// It has told what it holds, or never will.
    void back(const SegmentId& segment) {
        if (const auto found = find(segment); found != segments_.end()) segments_.erase(found);
    }
    void hear_of_earlier_life() noexcept { earlier_life_ = true; }
    bool earlier_life() const noexcept { return earlier_life_; }

    /// A key that had no value gets one, or some that nobody here knows shall be gone: whether somebody may come back with an older one.
    bool watch(Time now) {
        if (first_write_ == Time::max()) first_write_ = now;
        if (!segments_.empty() && now - segments_.back().since < kReturnWindow) return true;
        if (now - first_write_ < kReturnWindow && (earlier_life_ || unheard_++ < kUnheardMax)) return true;
        unwatched_ = true;
        segments_.clear();
        return false;
    }

    /// Whether everything was watched since this segment was given up.
    bool contains(const SegmentId& segment) const { return find(segment) != segments_.end(); }
    /// The same, since this life began.
    bool believes_earlier_lives() const noexcept { return !unwatched_; }
    /// Whether anybody is believed who comes back.
    bool any() const noexcept { return !unwatched_ || !segments_.empty(); }
    size_t size() const noexcept { return segments_.size(); }

private:
    struct Segment {
        SegmentId id;
        Time since{};
    };
    std::deque<Segment>::const_iterator find(const SegmentId& segment) const {
        return std::find_if(segments_.begin(), segments_.end(), [&](const Segment& one) { return one.id == segment; });
    }

    std::deque<Segment> segments_;  // in the order in which they were given up
    Time first_write_ = Time::max();
    uint64_t unheard_ = 0;
    bool earlier_life_ = false, unwatched_ = false;
};

}  // namespace mooncake::store
