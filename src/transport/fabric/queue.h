// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <vector>

#include "transport/fabric/endings.h"
#include "transport/fabric/remote_keys.h"
#include "transport/transport.h"

namespace mooncake::fabric {

/// A slice of which something has begun.
struct SliceRun {
    Completion* completion = nullptr;
    const std::byte* local = nullptr;
    uint64_t length = 0;
    Copier* copier = nullptr;
    uint32_t pending = 0;    // pieces begun and not over
    bool all_begun = false;  // no further piece will begin
    std::optional<Error> error;
    std::list<SliceRun>::iterator self;
};

/// A part of a slice, as one operation carries it.
struct Piece {
    SliceRun* run = nullptr;  // null: a probe of the path, of no slice
    Direction direction = Direction::kRead;
    uint8_t attempts = 0;     // that failed
    bool registered = false;  // the local side is memory that we registered
    std::byte* local = nullptr;
    uint64_t remote = 0;
    uint64_t length = 0;

    /// Its slice was given up: whatever becomes of the piece, its bytes do not count any more.
    bool given_up() const noexcept { return run != nullptr && run->error.has_value(); }
};

/// The slices submitted to a peer. They are cut into pieces only when a rail asks for one, so that it needs memory for what is
/// under way, not for what waits. Not thread-safe: belongs to the peer.
///
/// Slices may be read only while one of their submission is not over: after that the submitter may have freed them. So a batch never
/// rests at a slice that was given up.
class WorkQueue {
public:
    struct Batch {
        Direction direction = Direction::kRead;
        std::span<const Slice> slices;
        size_t next = 0;                  // first slice of which not everything has begun
        uint64_t offset = 0;              // how much of it has
        SliceRun* run = nullptr;          // of that slice, once something has
        bool blocked = false;             // waits for keys of that slice
        uint64_t refused = 0;             // rails (bits) that cannot carry what comes next
        RemoteKeys::Answered answered{};  // to a question for keys of one of its slices
        std::vector<const Completion*> given_up{};

        const Slice& head() const noexcept { return slices[next]; }
        /// Whether the NIC may use the local side as it is registered: a read does not go to memory for reading only that way.
        bool registered() const noexcept {
            const MemoryRegion* const region = head().region;
            return region != nullptr && (direction == Direction::kWrite || region->writable);
        }
    };

    ~WorkQueue();

    void push(Direction direction, std::span<const Slice> slices);
    std::list<Batch>& batches() noexcept { return batches_; }
    bool empty() const noexcept { return batches_.empty(); }
    /// Nothing waits and nothing is under way.
    bool idle() const noexcept { return batches_.empty() && runs_.empty(); }

    /// Takes the next `length` bytes. The batch is gone afterwards when they were its last.
    Piece begin(std::list<Batch>::iterator batch, uint64_t length);
    /// Fails the slice at the head: now, or with the last piece of it that has begun. False: it was the batch's last, which is gone.
    bool refuse(std::list<Batch>::iterator batch, Error error, Endings& endings);

    /// A piece is over. Its slice is reported with its last one.
    void finish(const Piece& piece, Endings& endings);
    void fail(const Piece& piece, const Error& error, Endings& endings);

    /// Stops one completion (null: all): what has not begun ends now, what has, with its last piece.
    void give_up(const Completion* completion, const Error& reason, Endings& endings);

private:
    static bool is_given_up(const Batch& batch, const Slice& slice) noexcept;
    bool advance(std::list<Batch>::iterator batch);
    void end(SliceRun& run, Endings& endings);

    std::list<Batch> batches_;
    std::list<SliceRun> runs_;
    std::list<SliceRun> spare_;  // ended, for the next
};

}  // namespace mooncake::fabric
