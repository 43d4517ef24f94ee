// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stop_token>
#include <vector>

#include "store/member/pool_access.h"
#include "store/node/read_pressure.h"
#include "store/protocol/events.h"
#include "store/tier/storage_tier.h"

namespace mooncake::store {

/// Where pieces of a value lie between disk and memory; made when it is first used. Not thread-safe.
class PromotionBuffer {
public:
    static constexpr uint64_t kBytes = 4 << 20;  // whole chunks
    std::byte* data() {
        if (!bytes_) bytes_.reset(new std::byte[kBytes]);
        return bytes_.get();
    }

private:
    std::unique_ptr<std::byte[]> bytes_;
};

struct PromotionSetup {
    PoolAccess& pool;
    StorageTier& tier;
    ReadPressure& reads;
    const CopyOrder& order;
    const WriteFence::Mark& asked;  // the right to write in the name of the master that ordered it
    const std::stop_token& stop;
};
struct PromotionOutcome {
    StoreCode code = StoreCode::kOk;
    SegmentHandle in_doubt;  // where bytes may still land
};

/// Copies a value from our disk to the memory that the master has reserved for it, ours or another node's, in its stored form. No byte is written there before
/// its chunk is verified, nor without the right to it; no right is held while the disk is waited for.
PromotionOutcome promote_value(const PromotionSetup& setup, PromotionBuffer& buffer);

}  // namespace mooncake::store
