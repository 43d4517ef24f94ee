// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "base/memory_probe.h"
#include "base/thread_annotations.h"
#include "base/time.h"

namespace mooncake::store {

/// What callers have registered, to tell how far memory around an address may be used. Ranges lie apart or one inside the other, and may be
/// there several times; whoever adds them has made sure of that. Thread-safe.
class RegisteredBuffers {
public:
    using Range = std::pair<std::byte*, uint64_t>;

    void add(std::byte* start, uint64_t length) {
        Lock lock(mutex_);
        Known& known = all_[start];
        ++known.count;
        if (length <= known.length) return;
        known.length = length;
        widen(start, length);
    }

    /// False if none begins there.
    bool remove(std::byte* start) {
        Lock lock(mutex_);
        const auto found = all_.find(start);
        if (found == all_.end()) return false;
        if (--found->second.count != 0) return true;
        const auto after = all_.erase(found);
        const auto widest = widest_.find(start);
        if (widest == widest_.end()) return true;
        const std::byte* const end = start + widest->second.length;
        widest_.erase(widest);
        for (auto inner = after; inner != all_.end() && inner->first < end; ++inner) widen(inner->first, inner->second.length);
        return true;
    }

    /// The widest range around an address.
    std::optional<Range> find(const std::byte* address) const {
        Lock lock(mutex_);
        return find_locked(address);
    }

    /// The same; nothing where that memory is gone. The kernel is asked at most once a millisecond, which costs more than a small copy.
    std::optional<Range> find_mapped(const std::byte* address, Time now) {
        Lock lock(mutex_);
        const auto range = find_locked(address);
        if (!range) return std::nullopt;
        Widest& widest = widest_[range->first];
        if (now - widest.looked_at < kLookInterval) return range;
        if (!is_mapped(address)) return std::nullopt;
        widest.looked_at = now;
        return range;
    }

private:
    static constexpr Duration kLookInterval = 1ms;

    struct Widest {
        uint64_t length = 0;
        Time looked_at{};  // when it was there
    };
    struct Known {
        uint64_t length = 0;
        uint32_t count = 0;
    };

    std::optional<Range> find_locked(const std::byte* address) const MC_REQUIRES(mutex_) {
        const auto next = widest_.upper_bound(const_cast<std::byte*>(address));
        if (next == widest_.begin()) return std::nullopt;
        const auto& [start, widest] = *std::prev(next);
        if (static_cast<uint64_t>(address - start) >= widest.length) return std::nullopt;
        return Range{start, widest.length};
    }

    void widen(std::byte* start, uint64_t length) MC_REQUIRES(mutex_) {
        const auto around = find_locked(start);
        if (around && length <= around->second - static_cast<uint64_t>(start - around->first)) return;
        widest_.erase(widest_.lower_bound(start), widest_.lower_bound(start + length));
        widest_[start] = {.length = length};
    }

    mutable Mutex mutex_;
    std::map<std::byte*, Known> all_ MC_GUARDED_BY(mutex_);
    std::map<std::byte*, Widest> widest_ MC_GUARDED_BY(mutex_);
};

}  // namespace mooncake::store
