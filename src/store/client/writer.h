// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "store/client/client_core.h"
#include "store/client/values.h"
#include "store/member/write_moves.h"

namespace mooncake::store {

/// As StoreClient::write(). Thread-safe. A full pool is answered with kNoAvailableHandle at once: who writes a cache would rather go on
/// without than wait for a lease to end.
std::vector<StoreCode> write_values(ClientCore& core, std::span<const ValueToWrite> values, const WriteConfig& config, bool replace);

// The steps of it that writes in parts share.

/// What put_start answered, and under which circumstances.
struct StartedWrites {
    PutStartReply reply;
    WriteFence::Mark asked;  // when
    BootTime until{};        // then their master forgets them, ended or not: nothing of them may begin to move
    /// The right to write them. Waits for a master that we are only getting to know.
    WriteFence::Pass enter(ClientCore& core) const;
};
/// put_start, repeated once under the same number if the connection broke. The answer has as many items as the question. Where there is
/// none, whatever may have been started is given up. `meanwhile`: done while the master thinks.
Result<StartedWrites> start_writes(ClientCore& core, std::span<const PutItem> items, const WriteConfig& config, bool replace,
                                   uint64_t request_id, std::span<const uint32_t> unreachable,
                                   const std::function<void()>& meanwhile = nullptr);
/// What of the items failed, moved to the targets, is the caller's to say; ends or gives up, and sets codes[i] where that fails.
struct WriteEnd {
    std::string_view key;
    uint64_t generation = 0, checksum = 0;
    StoreCode code = StoreCode::kOk;        // other than kOk: to be given up
    std::vector<SegmentHandle> in_doubt{};  // segments where its bytes may still land
};
void end_writes(ClientCore& core, std::span<WriteEnd> ends, uint64_t request_id);

}  // namespace mooncake::store
