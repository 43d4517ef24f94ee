// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>

#include "transport/fabric/wire.h"

namespace mooncake::fabric {

/// A peer's memory as far as it told us. Not thread-safe.
class RemoteKeys {
public:
    /// Adds what it said; where that differs from what we knew, it counts.
    void add(const ResolveAnswer& answer);
    void clear() { chunks_.clear(); }
    bool empty() const noexcept { return chunks_.empty(); }

    /// The chunk around an address; null: not known.
    const ChunkRecord* find(uint64_t address) const;
    /// How many bytes from the address on are known without a gap, at most `length`.
    uint64_t covered(uint64_t address, uint64_t length) const;
    /// Any chunk with a key of that rail; null: none.
    const ChunkRecord* any(uint32_t rail) const;

private:
    std::map<uint64_t, ChunkRecord> chunks_;  // by address; apart
};

}  // namespace mooncake::fabric
