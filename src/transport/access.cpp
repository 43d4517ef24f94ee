// SPDX-License-Identifier: Apache-2.0
#include "transport/access.h"

namespace mooncake {

void AccessTable::allow(AddressRange range) {
    WriteLock lock(mutex_);
    lengths_[range.address] = range.length;
}

bool AccessTable::revoke(uint64_t address, Deadline deadline) {
    {
        WriteLock lock(mutex_);
        lengths_.erase(address);
        version_.fetch_add(1, std::memory_order_seq_cst);
    }
    return quiescence_.quiesce(deadline);
}

bool AccessTable::covers_locked(AddressRange range) const {
    if (range.length == 0 || range.address + range.length < range.address) return false;
    const uint64_t end = range.address + range.length;
    uint64_t covered_to = range.address;
    auto next = lengths_.upper_bound(range.address);
    if (next == lengths_.begin()) return false;
    for (auto found = std::prev(next); found != lengths_.end() && found->first <= covered_to; ++found) {
        const uint64_t found_end = found->first + found->second;
        if (found_end <= covered_to) return false;
        if (found_end >= end) return true;
        covered_to = found_end;
    }
    return false;
}

bool AccessTable::covers(AddressRange range) const {
    ReadLock lock(mutex_);
    return covers_locked(range);
}

size_t AccessTable::first_not_covered(std::span<const AddressRange> ranges) const {
    ReadLock lock(mutex_);
    for (size_t i = 0; i < ranges.size(); ++i)
        if (!covers_locked(ranges[i])) return i;
    return ranges.size();
}

}  // namespace mooncake
