// SPDX-License-Identifier: Apache-2.0
#include "engine/registered_range.h"

namespace mooncake {

Unexpected overlap(const MemoryRegion& region, const MemoryRegion& other) {
    return fail(Code::kOverlap, "[{}, +{}) overlaps the registered [{}, +{})", static_cast<const void*>(region.address), region.length,
                static_cast<const void*>(other.address), other.length);
}

namespace {

/// Rights never grow inwards, so that what becomes of a range when those around it go is never more than peers had.
Result<> check_rights(const MemoryRegion& outer, const MemoryRegion& inner) {
    if (outer.writable || !inner.writable) return {};
    return fail(Code::kOverlap, "[{}, +{}) is registered for reading only", static_cast<const void*>(outer.address), outer.length);
}

}  // namespace

Result<> RegisteredRange::add(const MemoryRegion& region, uint64_t number) {
    RegisteredRange* at = this;
    MC_RETURN_IF_ERROR(check_rights(at->region_, region));
    for (int depth = 0; region.length != at->region_.length; ++depth) {
        if (depth == kDepthMax)
            return fail(Code::kNoSpace, "{} ranges are registered around {}", depth, static_cast<void*>(region.address));
        const auto after = at->inside_.upper_bound(region.address);
        RegisteredRange* const before = after == at->inside_.begin() ? nullptr : std::prev(after)->second.get();
        if (before != nullptr && before->contains(region)) {
            at = before;
            MC_RETURN_IF_ERROR(check_rights(at->region_, region));
            continue;
        }
        const bool adopted = before != nullptr && before->region_.address == region.address;
        if (before != nullptr && !adopted && before->end() > region.address) return overlap(region, before->region_);
        // It goes between this one and those that lie in it.
        const auto first = adopted ? std::prev(after) : after;
        auto made = std::make_unique<RegisteredRange>(region, number);
        auto last = first;
        for (; last != at->inside_.end() && last->first < made->end(); ++last) {
            if (last->second->end() > made->end()) return overlap(region, last->second->region_);
            MC_RETURN_IF_ERROR(check_rights(region, last->second->region_));
        }
        for (auto next = first; next != last;) made->inside_.insert(at->inside_.extract(next++));
        at->inside_.emplace(region.address, std::move(made));
        return {};
    }
    ++at->count_;
    return {};
}

RegisteredRange::Released RegisteredRange::release(const std::byte* address) {
    RegisteredRange* around = nullptr;  // of the one found
    RegisteredRange* found = nullptr;
    for (RegisteredRange *at = this, *outer = nullptr; at != nullptr;) {
        if (at->region_.address == address) {
            around = outer;
            found = at;
        }
        const auto after = at->inside_.upper_bound(address);
        RegisteredRange* const before = after == at->inside_.begin() ? nullptr : std::prev(after)->second.get();
        outer = at;
        at = before != nullptr && before->end() > address ? before : nullptr;
    }
    if (found == nullptr) return Released::kNothing;
    if (--found->count_ > 0) return Released::kCounted;
    if (around == nullptr) return Released::kLast;
    Inside left = std::move(found->inside_);
    around->inside_.erase(address);
    around->inside_.merge(left);
    return Released::kCounted;
}

}  // namespace mooncake
