// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "transport/fabric/wire.h"
#include "transport/transport.h"

namespace mooncake::fabric {

/// A range of a peer's memory, and what is to be done there.
struct WantedKeys {
    uint64_t address = 0;
    uint64_t length = 0;
    Direction direction = Direction::kRead;
};

/// A peer's memory as far as it told us. Not thread-safe.
class RemoteKeys {
public:
    /// Addresses of which an answer said everything: what is not known there is not registered. Holds for what was submitted before it was
    /// asked for, since the peer may register more at any time.
    struct Answered {
        uint64_t first = 1, last = 0;  // first > last: nothing
        uint64_t generation = 0;
    };

    /// Adds what it said to a question; where that differs from what we knew, it counts.
    Answered add(const ResolveAnswer& answer, uint64_t asked_address);
    void clear() {
        chunks_.clear();
        probe_.reset();
        ++generation_;
    }
    bool empty() const noexcept { return chunks_.empty(); }

    /// The chunk around an address; null: none is known that allows this.
    const ChunkRecord* find(uint64_t address, Direction direction) const;
    /// How many bytes of it, from its beginning on, are known without a gap and allow this.
    uint64_t covered(const WantedKeys& wanted) const;
    /// Whether some of it is not registered for this at the peer, as an answer told. Also for a range that wraps around.
    bool lacks(const WantedKeys& wanted, const Answered& answered) const;
    /// What to read to see whether there is a way to that rail: memory of the peer's own, which nobody takes away; where it has none there, any
    /// chunk. Null: none.
    const ChunkRecord* probe(uint32_t rail) const;

private:
    std::map<uint64_t, ChunkRecord> chunks_;  // by address; apart
    std::optional<ChunkRecord> probe_;        // lends nothing, but can be read
    uint64_t generation_ = 0;                 // counts how often they were forgotten
};

}  // namespace mooncake::fabric
