// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "base/time.h"
#include "store/master/object.h"

namespace mooncake::store {

/// Freed ranges that must not be reused yet, by the time at which they may. They stay taken in their allocators. Not thread-safe.
class Quarantine {
public:
    struct Rest {
        SegmentNumber segment = 0;
        RangeAllocator::Block block = 0;
        ClientNumber writer = 0;  // whose late bytes are feared; 0: readers' leases only
        uint64_t bytes = 0;
    };

    void add(Time until, const Rest& rest) {
        by_time_[until].push_back(rest);
        bytes_ += rest.bytes;
        ++size_;
    }
    /// Calls free(rest) for every range whose time has come.
    template <typename Free>
    void release(Time now, Free&& free) {
        while (!by_time_.empty() && by_time_.begin()->first <= now) {
            const std::vector<Rest> due = std::move(by_time_.begin()->second);
            by_time_.erase(by_time_.begin());
            for (const Rest& rest : due) {
                forget(rest);
                free(rest);
            }
        }
    }
    /// Takes out, and gives to visit(until, rest), what `matches(rest)`; linear.
    template <typename Matches, typename Visit>
    void extract(Matches&& matches, Visit&& visit) {
        for (auto at = by_time_.begin(); at != by_time_.end();) {
            std::erase_if(at->second, [&](const Rest& rest) {
                if (!matches(rest)) return false;
                forget(rest);
                visit(at->first, rest);
                return true;
            });
            at = at->second.empty() ? by_time_.erase(at) : std::next(at);
        }
    }

    Time next() const { return by_time_.empty() ? Time::max() : by_time_.begin()->first; }
    /// When that many bytes will have come back; Time::max() if there are fewer.
    Time time_for(uint64_t bytes) const {
        for (const auto& [time, rests] : by_time_) {
            for (const Rest& rest : rests) {
                if (rest.bytes >= bytes) return time;
                bytes -= rest.bytes;
            }
        }
        return Time::max();
    }
    uint64_t bytes() const noexcept { return bytes_; }
    size_t size() const noexcept { return size_; }
    const std::map<Time, std::vector<Rest>>& by_time() const { return by_time_; }

private:
    void forget(const Rest& rest) {
        bytes_ -= rest.bytes;
        --size_;
    }

    std::map<Time, std::vector<Rest>> by_time_;
    uint64_t bytes_ = 0;
    size_t size_ = 0;
};

}  // namespace mooncake::store
