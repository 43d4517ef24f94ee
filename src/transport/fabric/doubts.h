// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "base/incarnation.h"
#include "base/thread_annotations.h"

namespace mooncake::fabric {

/// Endpoints of a target (rail, epoch) at which something of ours may still arrive.
using Doubts = std::set<std::pair<uint32_t, uint64_t>>;

/// What peers that are gone leave to whoever connects to that incarnation of the target next: doubts, which are fenced first, and that
/// there was no path to it any more. Thread-safe.
class DoubtTable {
public:
    void add(Incarnation target, const Doubts& doubts);
    Doubts take(Incarnation target);

    void add_lost(Incarnation target);
    bool is_lost(Incarnation target);
    void found(Incarnation target);

private:
    static constexpr size_t kTargetsMax = 4096;
    Mutex mutex_;
    std::map<uint64_t, Doubts> doubts_ MC_GUARDED_BY(mutex_);
    std::set<uint64_t> lost_ MC_GUARDED_BY(mutex_);
};

}  // namespace mooncake::fabric
