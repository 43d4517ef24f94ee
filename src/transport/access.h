// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>

#include "base/error.h"
#include "base/quiescence.h"
#include "base/thread_annotations.h"
#include "base/time.h"
#include "device/device.h"

namespace mooncake {

/// A range of our memory, named by address as peers name it.
struct AddressRange {
    uint64_t address = 0;
    uint64_t length = 0;
};

/// What a peer does to our memory, or at most may do to it.
enum class Access : uint8_t { kRead, kWrite };

struct Permission {
    AddressRange range;
    Access most = Access::kWrite;
    MemoryKind kind = MemoryKind::kHost;
};

/// Which of our memory peers may touch; asked by every transport whose accesses run in our process (self, tcp). O(log n).
/// Thread-safe.
///
/// An access asks and touches inside one Section:
///     auto section = access.section();
///     if (!access.covers(range, Access::kRead)) refuse;
///     copy;                                        // short: a revoker waits for it
/// A longer operation reads version() before it asks, and in each later Section asks again only if version() has moved.
class AccessTable {
public:
    /// Lets peers read the range and, unless `most` is kRead, write it. Ranges may touch but not overlap; the registry above sees to
    /// that.
    void allow(const Permission& permission);
    void allow(AddressRange range, Access most = Access::kWrite) { allow({.range = range, .most = most}); }
    /// Forbids a range that allow() was given, and waits for the Sections open now. False at the deadline (still forbidden).
    bool revoke(uint64_t address, Deadline deadline);
    /// Forbids a range that allow() was given and allows those parts of it, in one step. Waits for nobody: see quiesce().
    void replace(uint64_t address, std::span<const Permission> parts);
    /// Waits for the Sections open now. False at the deadline.
    bool quiesce(Deadline deadline) { return quiescence_.quiesce(deadline); }
    /// Forbids everything, now and for good (a later allow() changes nothing), and waits as revoke(). May be called again.
    bool close(Deadline deadline);

    [[nodiscard]] Quiescence::Section section() noexcept { return quiescence_.enter(); }
    /// True when ranges of host memory that allow this cover every byte; a range may span neighbours. A range of no bytes is never
    /// covered.
    bool covers(AddressRange range, Access access) const;
    /// As covers(), for whoever moves memory of any kind: what kind it is. Nothing where not all of it is allowed, or of one kind.
    std::optional<MemoryKind> kind_of(AddressRange range, Access access) const;
    /// The first of the ranges that is not covered, or `ranges.size()`.
    size_t first_not_covered(std::span<const AddressRange> ranges, Access access) const;
    /// Why a range is refused, for the peer. kNotSupported: this is allowed, but some of it is memory of a device; else kNotRegistered.
    std::string refusal(AddressRange range, Access access) const;
    Code refusal_code(AddressRange range, Access access) const;
    /// Moves whenever something is revoked.
    uint64_t version() const noexcept { return version_.load(std::memory_order_seq_cst); }

private:
    /// The kinds of memory that cover a range, one bit each; 0: not all of it is allowed.
    uint32_t kinds_of(AddressRange range, Access access) const MC_THREAD_ATTRIBUTE(requires_shared_capability(mutex_));

    mutable SharedMutex mutex_;
    std::map<uint64_t, Permission> allowed_ MC_GUARDED_BY(mutex_);  // by start address
    bool closed_ MC_GUARDED_BY(mutex_) = false;
    std::atomic<uint64_t> version_{1};
    Quiescence quiescence_;
};

}  // namespace mooncake
