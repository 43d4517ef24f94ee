// SPDX-License-Identifier: Apache-2.0
#include "store/client/write_again.h"

#include <algorithm>

namespace mooncake::store {

std::vector<size_t> WriteAgain::wait(std::span<const StoreCode> codes, Duration disk_wait) {
    std::vector<size_t> now, later;
    for (size_t i = 0; i < codes.size(); ++i) {
        if (codes[i] == StoreCode::kTransferFail) now.push_back(i);
        else if (codes[i] == StoreCode::kReplicaIsNotReady || codes[i] == StoreCode::kNoAvailableHandle) later.push_back(i);
    }
    if (core_.closing()) return {};
    if (!now.empty() && transfers_ < kTransfersMax) {
        ++transfers_;
        return now;
    }
    if (later.empty()) return {};
    const Time at = Clock::now();
    if (began_ == Time{}) began_ = at;
    const bool settling = at < core_.settles_at.load(std::memory_order_acquire);
    const bool for_disks = disk_wait > Duration::zero() && at - began_ < kDiskPatience;
    std::erase_if(later, [&](size_t i) {
        return codes[i] == StoreCode::kNoAvailableHandle ? !settling && !for_disks : at - began_ >= kOtherWriterPatience;
    });
    if (later.empty() || !core_.pool.pause(for_disks ? std::min(disk_wait, kPauseMax) : pause_)) return {};
    pause_ = std::min(2 * pause_, kPauseMax);
    return later;
}

}  // namespace mooncake::store
