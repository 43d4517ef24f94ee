// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>

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
        known_[segment] = ++last_;
        segments_.push_back({segment, last_, now});
        drop_forgotten();
        while (known_.size() > kSegmentsMax) {
            known_.erase(segments_.front().id);
            drop_forgotten();
        }
    }
    /// Given up again before it had told what it holds.
    void still_away(const SegmentId& segment, Time now) {
        if (contains(segment)) left(segment, now);
    }
    /// It has told what it holds, or never will.
    void back(const SegmentId& segment) {
        if (known_.erase(segment) != 0) drop_forgotten();
    }
    void hear_of_earlier_life() noexcept { earlier_life_ = true; }
    bool earlier_life() const noexcept { return earlier_life_; }

    /// A key that had no value gets one, or some that nobody here knows shall be gone: whether somebody may come back with an older one.
    bool watch(Time now) {
        if (first_write_ == Time::max()) first_write_ = now;
        if (!segments_.empty() && now - segments_.back().since < kReturnWindow) return true;
        if (now - first_write_ < kReturnWindow && (earlier_life_ || unheard_++ < kUnheardMax)) return true;
        if (unwatched_ && segments_.empty()) return false;
        unwatched_ = true;
        segments_.clear();
        known_.clear();
        return false;
    }

    /// Whether everything was watched since this segment was given up.
    bool contains(const SegmentId& segment) const { return known_.contains(segment); }
    /// The same, since this life began.
    bool believes_earlier_lives() const noexcept { return !unwatched_; }
    /// Whether anybody is believed who comes back.
    bool any() const noexcept { return !unwatched_ || !segments_.empty(); }
    size_t size() const noexcept { return known_.size(); }

private:
    struct Segment {
        SegmentId id;
        uint64_t number = 0;
        Time since{};
    };
    bool forgotten(const Segment& one) const {
        const auto found = known_.find(one.id);
        return found == known_.end() || found->second != one.number;
    }
    /// The first and the last are known ones; of the others at most as many are not as could be.
    void drop_forgotten() {
        while (!segments_.empty() && forgotten(segments_.front())) segments_.pop_front();
        while (!segments_.empty() && forgotten(segments_.back())) segments_.pop_back();
        if (segments_.size() > 2 * kSegmentsMax) std::erase_if(segments_, [this](const Segment& one) { return forgotten(one); });
    }

    std::deque<Segment> segments_;                   // in the order in which they were given up, with some that are back
    std::unordered_map<SegmentId, uint64_t> known_;  // by which of their numbers
    uint64_t last_ = 0;
    Time first_write_ = Time::max();
    uint64_t unheard_ = 0;
    bool earlier_life_ = false, unwatched_ = false;
};

}  // namespace mooncake::store
