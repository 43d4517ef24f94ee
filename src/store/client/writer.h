// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "store/client/client_core.h"
#include "store/client/store_client.h"
#include "store/client/write_fence.h"
#include "store/client/write_guard.h"

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
    StoreCode code = StoreCode::kOk;   // other than kOk: to be given up
    std::vector<SegmentHandle> in_doubt{};  // segments where its bytes may still land
};
void end_writes(ClientCore& core, std::span<WriteEnd> ends, uint64_t request_id);

/// Bytes of planned writes on their way to their segments. Not thread-safe.
class WriteMoves {
public:
    /// `right`: to write; lasts as long as this.
    WriteMoves(ClientCore& core, const WriteFence::Pass& right) : core_(core), right_(right), segments_(core) {}

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
    };
    Target& target_for(uint64_t epoch, uint32_t number);
    void copy_own(const Target& target, WriteGuard& guard, std::vector<Failure>& failures);
    void note_failures(const Target& target, bool in_doubt, std::vector<Failure>& failures) const;
    void note_outcome(const Target& target, const Move& move, std::vector<Failure>& failures);
    bool may_still_land(const Move& move);

    ClientCore& core_;
    const WriteFence::Pass& right_;
    SegmentLookup segments_;
    std::vector<Target> targets_;
};

}  // namespace mooncake::store
