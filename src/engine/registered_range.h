// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "base/error.h"
#include "transport/memory.h"

namespace mooncake {

/// A registered range with those registered inside it: nested or apart, never crossed. Plain data with rules; not thread-safe.
class RegisteredRange {
public:
    RegisteredRange() = default;
    RegisteredRange(const MemoryRegion& region, uint64_t number) : region_(region), number_(number) {}

    const MemoryRegion& region() const noexcept { return region_; }
    uint64_t number() const noexcept { return number_; }  // when it was registered first, among all
    const std::byte* end() const noexcept { return region_.address + region_.length; }
    bool contains(const MemoryRegion& other) const noexcept {
        return other.address >= region_.address && other.address + other.length <= end();
    }

    /// Counts a range that this one contains. kOverlap: it crosses another, or one may be written that is inside one that may not;
    /// kNoSpace: nested too deeply.
    Result<> add(const MemoryRegion& region, uint64_t number);

    enum class Released : uint8_t {
        kNothing,  // none starts there
        kCounted,  // one less
        kLast,     // that was the last one of this range itself
    };
    /// Takes away one of the narrowest range that starts there. What was inside it is inside the next wider one then.
    Released release(const std::byte* address);
    /// Undoes a release() that said kLast.
    void restore() noexcept { count_ = 1; }

    /// Those inside that are in no other, with what is inside them.
    using Inside = std::map<const std::byte*, std::unique_ptr<RegisteredRange>>;
    const Inside& inside() const noexcept { return inside_; }
    Inside take_inside() noexcept { return std::exchange(inside_, {}); }
    /// Goes on in the place of the same range, which was inside another before.
    void take_over(RegisteredRange before) noexcept {
        count_ = before.count_;
        inside_ = std::move(before.inside_);
    }

    static constexpr int kDepthMax = 1000;

private:
    MemoryRegion region_;
    uint64_t number_ = 0;
    uint32_t count_ = 1;  // registrations of exactly this range
    Inside inside_;       // by start
};

Unexpected overlap(const MemoryRegion& region, const MemoryRegion& other);

}  // namespace mooncake
