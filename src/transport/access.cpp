// SPDX-License-Identifier: Apache-2.0
#include "transport/access.h"

namespace mooncake {

void AccessTable::allow(const Permission& permission) {
    WriteLock lock(mutex_);
    if (!closed_) allowed_[permission.range.address] = permission;
}

void AccessTable::replace(uint64_t address, std::span<const Permission> parts) {
    WriteLock lock(mutex_);
    allowed_.erase(address);
    if (!closed_)
        for (const Permission& part : parts) allowed_[part.range.address] = part;
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

bool AccessTable::covers_locked(AddressRange range, Access access) const {
    if (range.length == 0 || range.address + range.length < range.address) return false;
    const uint64_t end = range.address + range.length;
    uint64_t covered_to = range.address;
    auto next = allowed_.upper_bound(range.address);
    if (next == allowed_.begin()) return false;
    for (auto found = std::prev(next); found != allowed_.end() && found->first <= covered_to; ++found) {
        const uint64_t found_end = found->first + found->second.range.length;
        if (found_end <= covered_to || access > found->second.most || found->second.kind != MemoryKind::kHost) return false;
        if (found_end >= end) return true;
        covered_to = found_end;
    }
    return false;
}

bool AccessTable::covers(AddressRange range, Access access) const {
    ReadLock lock(mutex_);
    return covers_locked(range, access);
}

size_t AccessTable::first_not_covered(std::span<const AddressRange> ranges, Access access) const {
    ReadLock lock(mutex_);
    for (size_t i = 0; i < ranges.size(); ++i)
        if (!covers_locked(ranges[i], access)) return i;
    return ranges.size();
}

Code AccessTable::refusal_code(AddressRange range) const {
    ReadLock lock(mutex_);
    const auto next = allowed_.upper_bound(range.address);
    if (next == allowed_.begin()) return Code::kNotRegistered;
    const Permission& found = std::prev(next)->second;
    const bool device = range.address - found.range.address < found.range.length && found.kind != MemoryKind::kHost;
    return device ? Code::kNotSupported : Code::kNotRegistered;
}

std::string AccessTable::refusal(AddressRange range, Access access) const {
    if (refusal_code(range) == Code::kNotSupported)
        return format_text("{} bytes at {:#x} are memory of a device, which this transport does not reach", range.length, range.address);
    const bool readable = access == Access::kWrite && covers(range, Access::kRead);
    return format_text("{} bytes at {:#x} are {} here", range.length, range.address,
                       readable ? "registered for reading only" : "not registered");
}

}  // namespace mooncake
