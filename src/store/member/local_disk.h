// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/time.h"
#include "store/protocol/codes.h"

namespace mooncake::store {

/// A value on the disk of this process, or a part of one, that its client wants to read. A value is told by its generation; the key has to be its own.
struct DiskRead {
    std::string_view key;
    uint64_t generation = 0;
    uint64_t offset = 0;              // in the value
    std::span<std::byte> into{};      // host memory; beyond the value: kInvalidParams
    StoreCode code = StoreCode::kOk;  // kObjectNotFound: a miss
};

/// What the client of a process needs of its node's disk. Thread-safe.
class LocalDisk {
public:
    virtual ~LocalDisk() = default;
    /// Waits, until the deadline at most; nothing is written to `into` afterwards. What was read is verified.
    virtual void read(std::span<DiskRead> reads, Deadline deadline) = 0;
};

}  // namespace mooncake::store
