// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <map>

#include "base/time.h"

namespace mooncake::store {

/// How many pins have not ended yet, to the second; costs what is pinned, nothing without. Not thread-safe.
class PinCounter {
public:
    /// A pin now ends at `to` instead of `from`; Time{}: there is, or was, none.
    void move(Time from, Time to) {
        if (from == to) return;
        if (const auto found = by_end_.find(second_of(from)); from != Time{} && found != by_end_.end() && --found->second == 0)
            by_end_.erase(found);
        if (to != Time{}) ++by_end_[second_of(to)];
    }
    uint64_t count(Time now) const {
        uint64_t pins = 0;
        for (auto at = by_end_.upper_bound(second_of(now)); at != by_end_.end(); ++at) pins += at->second;
        return pins;
    }
    /// Whether one may not have ended yet.
    bool any(Time now) const { return !by_end_.empty() && by_end_.rbegin()->first >= second_of(now); }

private:
    static int64_t second_of(Time time) { return std::chrono::ceil<std::chrono::seconds>(time.time_since_epoch()).count(); }

    std::map<int64_t, uint64_t> by_end_;  // second -> pins; no more entries than a pin may last, or as what is pinned lives on
};

}  // namespace mooncake::store
