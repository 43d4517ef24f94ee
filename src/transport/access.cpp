// SPDX-License-Identifier: Apache-2.0
#include "transport/access.h"

#include <bit>

namespace mooncake {

void AccessTable::allow(const Permission& permission) {
    WriteLock lock(mutex_);
    if (!closed_) allowed_[permission.range.address] = permission;
}

void AccessTable::replace(uint64_t address, std::span<const Permission> parts) {
    std::map<uint64_t, Permission> made;  // first, so that all of it happens or nothing does
    for (const Permission& part : parts) made.emplace(part.range.address, part);
    WriteLock lock(mutex_);
    allowed_.erase(address);
    if (!closed_) allowed_.merge(made);
    version_.fetch_add(1, std::memory_order_seq_cst);
}

bool AccessTable::revoke(uint64_t address, Deadline deadline) {
    replace(address, {});
    return quiesce(deadline);
}

bool AccessTable::close(Deadline deadline) {
    {
        WriteLock lock(mutex_);
        closed_ = true;
        allowed_.clear();
        version_.fetch_add(1, std::memory_order_seq_cst);
    }
    return quiescence_.quiesce(deadline);
}

namespace {

constexpr uint32_t bit_of(MemoryKind kind) noexcept { return uint32_t{1} << static_cast<uint32_t>(kind); }
constexpr uint32_t kOnlyHost = bit_of(MemoryKind::kHost);

}  // namespace

uint32_t AccessTable::kinds_of(AddressRange range, Access access) const {
    if (range.length == 0 || range.address + range.length < range.address) return 0;
    const uint64_t end = range.address + range.length;
    uint64_t covered_to = range.address;
    uint32_t kinds = 0;
    auto next = allowed_.upper_bound(range.address);
    if (next == allowed_.begin()) return 0;
    for (auto found = std::prev(next); found != allowed_.end() && found->first <= covered_to; ++found) {
        const uint64_t found_end = found->first + found->second.range.length;
        if (found_end <= covered_to || access > found->second.most) return 0;
        kinds |= bit_of(found->second.kind);
        if (found_end >= end) return kinds;
        covered_to = found_end;
    }
    return 0;
}

bool AccessTable::covers(AddressRange range, Access access) const {
    ReadLock lock(mutex_);
    return kinds_of(range, access) == kOnlyHost;
}

std::optional<MemoryKind> AccessTable::kind_of(AddressRange range, Access access) const {
    ReadLock lock(mutex_);
    const uint32_t kinds = kinds_of(range, access);
    if (!std::has_single_bit(kinds)) return std::nullopt;
    return static_cast<MemoryKind>(std::countr_zero(kinds));
}

size_t AccessTable::first_not_covered(std::span<const AddressRange> ranges, Access access) const {
    ReadLock lock(mutex_);
    for (size_t i = 0; i < ranges.size(); ++i)
        if (kinds_of(ranges[i], access) != kOnlyHost) return i;
    return ranges.size();
}

Code AccessTable::refusal_code(AddressRange range, Access access) const {
    ReadLock lock(mutex_);
    return kinds_of(range, access) != 0 ? Code::kNotSupported : Code::kNotRegistered;
}

std::string AccessTable::refusal(AddressRange range, Access access) const {
    ReadLock lock(mutex_);
    if (kinds_of(range, access) != 0)
        return format_text("{} bytes at {:#x} are memory of a device, which this transport does not reach", range.length, range.address);
    const bool readable = access == Access::kWrite && kinds_of(range, Access::kRead) != 0;
    return format_text("{} bytes at {:#x} are {} here", range.length, range.address,
                       readable ? "registered for reading only" : "not registered");
}

}  // namespace mooncake
