// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "store/master/tombstones.h"
#include "store/protocol/segments.h"

namespace mooncake::store {

/// Which patterns of the tombstones match which keys that a node reports: tried before the master's lock is taken, since a pattern may take its time.
/// Whoever left one since then is asked with the lock. Not thread-safe.
class MatchedKeys {
public:
    MatchedKeys() = default;
    MatchedKeys(std::span<const Tombstones::Pattern> patterns, std::span<const HeldObject> objects) {
        if (patterns.empty()) return;
        first_ = patterns.front().number;
        count_ = patterns.size();
        masks_.resize(objects.size());
        for (size_t i = 0; i < objects.size(); ++i)
            for (size_t n = 0; n < patterns.size(); ++n)
                if (patterns[n].matches(objects[i].key)) masks_[i] |= uint64_t{1} << n;
    }

    /// Of one object of those.
    Tombstones::Matched of(size_t object) const noexcept {
        return masks_.empty() ? Tombstones::Matched() : Tombstones::Matched{.first = first_, .count = count_, .mask = masks_[object]};
    }

private:
    uint64_t first_ = 0;
    size_t count_ = 0;
    std::vector<uint64_t> masks_;  // by object; empty: there are no patterns
};

}  // namespace mooncake::store
