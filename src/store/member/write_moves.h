// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/engine.h"
#include "store/member/mover.h"
#include "store/member/pool_access.h"
#include "store/member/write_fence.h"
#include "store/member/write_guard.h"
#include "store/protocol/objects.h"

namespace mooncake::store {

/// Bytes of planned writes on their way to their segments. Not thread-safe.
class WriteMoves {
public:
    /// `right`: to write; lasts as long as this.
    WriteMoves(PoolAccess& pool, const WriteFence::Pass& right) : pool_(pool), right_(right), segments_(pool) {}

    /// To this replica of item `item`, `offset` bytes behind its start. False: the segment is not known, or too small. `copier`: or null.
    bool add(uint32_t item, uint64_t epoch, const ReplicaLocation& replica, uint64_t offset, const std::byte* from, uint64_t length,
             Copier* copier = nullptr);
    /// Moves everything and says what became of each item: nothing, or why it failed. Afterwards more can be added.
    struct Failure {
        uint32_t item = 0;
        uint32_t segment = 0;
        SegmentHandle in_doubt;    // not null: its bytes may still land there
        bool right_ended = false;  // which is not the segment's fault
    };
    std::vector<Failure> run();

private:
    struct Target {
        SegmentLookup::Found to;
        std::vector<Block> blocks;
        std::vector<uint32_t> item_of_block;

        uint64_t bytes() const {
            uint64_t total = 0;
            for (const Block& block : blocks) total += block.length;
            return total;
        }
    };
    Target& target_for(uint64_t epoch, uint32_t number);
    Move move_to(const Target& target, std::vector<Block> blocks);
    /// Those of a device's memory, in steps that are copied before anything can have changed.
    std::vector<std::vector<Block>> take_device_blocks(std::vector<Block>& blocks) const;
    void copy_own(const Target& target, WriteGuard& guard, std::vector<Failure>& failures);
    void note_failures(const Target& target, bool in_doubt, std::vector<Failure>& failures) const;
    void note_outcome(const Target& target, const Move& move, std::vector<Failure>& failures);
    bool may_still_land(const Move& move);

    PoolAccess& pool_;
    const WriteFence::Pass& right_;
    SegmentLookup segments_;
    std::vector<Target> targets_;
};

}  // namespace mooncake::store
