// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "base/time.h"
#include "store/allocation/slab.h"
#include "store/master/object.h"

namespace mooncake::store {

/// Freed ranges that must not be reused yet, by the time at which they may. They stay taken in their allocators, with the number of their
/// rest as owner. Not thread-safe.
class Quarantine {
public:
    struct Rest {
        SegmentNumber segment = 0;
        RangeAllocator::Block block = 0;  // 0: this number is free
        ClientNumber writer = 0;          // whose late bytes are feared; 0: readers' leases only
        bool earlier = false;             // the write was planned by an earlier master
        uint64_t bytes = 0;
        uint64_t length = 0;  // of the value that was or should have been there
        uint64_t generation = 0;
        Time until{};
    };

    RestId add(const Rest& rest) {
        const RestId id = rests_.take();
        rests_[id] = rest;
        by_time_[rest.until].push_back(id);
        bytes_ += rest.bytes;
        return id;
    }
    /// Calls free(rest) for every range whose time has come.
    template <typename Free>
    void release(Time now, Free&& free) {
        while (!by_time_.empty() && by_time_.begin()->first <= now) {
            const std::vector<RestId> due = std::move(by_time_.begin()->second);
            by_time_.erase(by_time_.begin());
            for (const RestId id : due) free(forget(id));
        }
    }
    /// Takes out, and gives to visit(rest), what `matches(rest)`; linear.
    template <typename Matches, typename Visit>
    void extract(Matches&& matches, Visit&& visit) {
        for (auto at = by_time_.begin(); at != by_time_.end();) {
            std::erase_if(at->second, [&](RestId id) {
                if (!matches(rests_[id])) return false;
                visit(forget(id));
                return true;
            });
            at = at->second.empty() ? by_time_.erase(at) : std::next(at);
        }
    }

    const Rest& operator[](RestId id) const { return rests_[id]; }
    Time next() const { return by_time_.empty() ? Time::max() : by_time_.begin()->first; }
    /// When that many bytes will have come back; Time::max() if there are fewer.
    Time time_for(uint64_t bytes) const {
        for (const auto& [time, rests] : by_time_) {
            for (const RestId id : rests) {
                if (rests_[id].bytes >= bytes) return time;
                bytes -= rests_[id].bytes;
            }
        }
        return Time::max();
    }
    uint64_t bytes() const noexcept { return bytes_; }
    size_t size() const noexcept { return rests_.size(); }
    const std::map<Time, std::vector<RestId>>& by_time() const { return by_time_; }

private:
    Rest forget(RestId id) {
        const Rest rest = rests_[id];
        bytes_ -= rest.bytes;
        rests_.give_back(id);
        return rest;
    }

    Slab<Rest, 256> rests_;
    std::map<Time, std::vector<RestId>> by_time_;
    uint64_t bytes_ = 0;
};

}  // namespace mooncake::store
