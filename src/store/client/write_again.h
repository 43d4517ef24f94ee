// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "store/client/client_core.h"

namespace mooncake::store {

/// Decides what of a write is worth another try, and waits until it is; for one write. Not thread-safe.
///
/// - A node failed under the write: at once, elsewhere, a few times.
/// - Somebody else is writing the key: until that has come to an end, or 2 s. Only then is it known whether the value is there.
/// - No memory, but the master has only just come back: until the other nodes may have.
/// - No memory, because what would have to go is on its way to a disk: for as long as the disks get on with it, or 10 s. Who writes faster than the disks
///   is slowed down to their speed.
class WriteAgain {
public:
    explicit WriteAgain(ClientCore& core) : core_(core) {}

    /// The places of those codes that are worth it now; none: the codes are final. `disk_wait`: as in the master's last answer.
    std::vector<size_t> wait(std::span<const StoreCode> codes, Duration disk_wait);

private:
    static constexpr Duration kOtherWriterPatience = 2s, kDiskPatience = 10s;
    static constexpr Duration kPauseMin = 1ms, kPauseMax = 50ms;
    static constexpr int kTransfersMax = 2;

    ClientCore& core_;
    Time began_{};
    int transfers_ = 0;
    Duration pause_ = kPauseMin;
};

}  // namespace mooncake::store
