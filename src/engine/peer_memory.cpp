// SPDX-License-Identifier: Apache-2.0
#include "engine/peer_memory.h"

#include <algorithm>

namespace mooncake {

void PeerMemory::replace(Ranges ranges) {
    Lock lock(mutex_);
    const auto section = readers_.enter();
    if (ranges_.get() == ranges) return;
    const size_t count = ranges.size();
    ranges_.replace(std::make_unique<const Ranges>(std::move(ranges)));
    ranges_count_.store(count, std::memory_order_relaxed);
}

PeerMemory::Reading::Run PeerMemory::Reading::at(uint64_t address, uint64_t length) const noexcept {
    const auto next = std::upper_bound(ranges_.begin(), ranges_.end(), address,
                                       [](uint64_t value, const DeviceRange& range) { return value < range.address; });
    if (next != ranges_.begin()) {
        const DeviceRange& around = *std::prev(next);
        if (around.end() > address) return {.kind = around.kind, .length = std::min(length, around.end() - address)};
    }
    return {.kind = MemoryKind::kHost, .length = next == ranges_.end() ? length : std::min(length, next->address - address)};
}

}  // namespace mooncake
