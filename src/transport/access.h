// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <span>

#include "base/error.h"
#include "base/quiescence.h"
#include "base/thread_annotations.h"
#include "base/time.h"

namespace mooncake {

/// A range of our memory, named by address as peers name it.
struct AddressRange {
    uint64_t address = 0;
    uint64_t length = 0;
};

/// Which of our memory peers may touch; asked by every transport whose accesses run in our process (self, tcp). O(log n).
/// Thread-safe.
///
/// An access asks and touches inside one Section:
///     auto section = access.section();
///     if (!access.covers(range)) refuse;
///     copy;                                        // short: a revoker waits for it
/// A longer operation reads version() before it asks, and in each later Section asks again only if version() has moved.
class AccessTable {
public:
    /// Ranges may touch but not overlap; the registry above sees to that.
    void allow(AddressRange range);
    /// Forbids a range that allow() was given, and waits for the Sections open now. False at the deadline (still forbidden).
    bool revoke(uint64_t address, Deadline deadline);

    [[nodiscard]] Quiescence::Section section() noexcept { return quiescence_.enter(); }
    /// True when the allowed ranges cover every byte; a range may span neighbours. A range of no bytes is never covered.
    bool covers(AddressRange range) const;
    /// The first of the ranges that is not covered, or `ranges.size()`.
    size_t first_not_covered(std::span<const AddressRange> ranges) const;
    /// Moves whenever something is revoked.
    uint64_t version() const noexcept { return version_.load(std::memory_order_seq_cst); }

private:
    bool covers_locked(AddressRange range) const MC_THREAD_ATTRIBUTE(requires_shared_capability(mutex_));

    mutable SharedMutex mutex_;
    std::map<uint64_t, uint64_t> lengths_ MC_GUARDED_BY(mutex_);  // by start address
    std::atomic<uint64_t> version_{1};
    Quiescence quiescence_;
};

}  // namespace mooncake
