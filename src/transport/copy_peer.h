// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <span>
#include <utility>
#include <vector>

#include "base/quiescence.h"
#include "base/thread_annotations.h"
#include "transport/copy_pool.h"
#include "transport/transport.h"

namespace mooncake {

/// What is copied at one go: either some whole slices, or (then `slices` is one) a part of a longer one.
struct CopyChunk {
    Direction direction = Direction::kRead;
    std::span<const Slice> slices;
    uint64_t offset = 0;  // of the part in its slice
    uint64_t length = 0;  // of the part; 0: whole slices

    bool part() const noexcept { return length != 0; }
};

/// The slices of a chunk that failed, by their place in it.
using CopyFailures = std::vector<std::pair<size_t, Error>>;

/// What is known of local memory: that which nobody registered is taken for the host's, and only the kernel touches it.
inline MemoryKind local_kind(const Slice& slice) noexcept { return slice.region != nullptr ? slice.region->kind : MemoryKind::kHost; }

/// Whether the local side may be touched directly. Everything else is left to the kernel, which reports a bad address.
inline bool may_touch_local(Direction direction, const Slice& slice) noexcept {
    return slice.region != nullptr && slice.region->kind == MemoryKind::kHost && (direction == Direction::kWrite || slice.region->writable);
}

/// The common half of the peers whose transfers are copies done by our CPU (self, shm): cuts the submitted slices into chunks,
/// shares them between the submitter and the pool, keeps count, and cancels. A derived class only copies one chunk.
/// Thread-safe as Peer.
///
/// A submission that fits one chunk is copied on the submitter's thread without any lock; larger ones are kept in a list until
/// they are over, so that cancel() finds what has not begun.
class CopyPeer : public Peer {
public:
    void submit(Direction direction, std::span<const Slice> slices, Submit how) final;
    Stopped cancel(Completion& completion, const Error& reason, Deadline deadline) final;
    void close(const Error& reason) final;
    bool usable() const noexcept final { return !broken_.load(std::memory_order_acquire); }

    static constexpr uint64_t kChunkBytes = 1 << 20;
    static constexpr size_t kChunkSlices = 1024;
    // A device takes microseconds to begin, and is fast: half a millisecond of its work, and less than that within it.
    static constexpr uint64_t kDeviceChunkBytes = 32 << 20, kWithinDeviceChunkBytes = 256 << 20;
    static constexpr size_t kDeviceChunkSlices = 4096;
    static constexpr uint64_t kHelpBytes = 4 << 20;  // from here on a second thread gains more than waking it costs

protected:
    explicit CopyPeer(CopyPool& pool);
    ~CopyPeer() override;
    /// Ends what is outstanding. Called first by the destructor of every derived class, while copy() still works.
    void stop();
    /// From now on nothing is copied any more and everything fails with the first reason given. Does not wait.
    void mark_broken(const Error& reason);
    Error broken_reason();
    static void fail_all(const CopyChunk& chunk, const Error& error, CopyFailures& failures);

    /// Copies one chunk and reports the slices that failed, in any order, perhaps twice. May run in several threads at once.
    virtual void copy(const CopyChunk& chunk, CopyFailures& failures) = 0;
    /// Whether parts of the slice may be copied in any order, and at the same time.
    virtual bool divisible(Direction, const Slice&) const noexcept { return true; }
    /// What the memory at the other end is, as far as that is worth a look: it decides how much is copied at one go.
    virtual MemoryKind remote_kind(Direction, const Slice&) const noexcept { return MemoryKind::kHost; }
    /// A Section of this is open around every copy().
    Quiescence& copying() const noexcept { return copying_; }

private:
    class Batch;
    class Lost;
    struct Cut;

    struct ChunkLimits {
        uint64_t bytes = kChunkBytes;
        size_t slices = kChunkSlices;
    };
    ChunkLimits limits_of(Direction direction, const Slice& slice) const noexcept;
    CopyChunk take_chunk(Direction direction, std::span<const Slice> slices) const noexcept;
    void run_chunk(const CopyChunk& chunk, CopyFailures& failures);
    static void finish_whole(const CopyChunk& chunk, CopyFailures& failures);
    static void fail_whole(const CopyChunk& chunk, const Error& error) noexcept;

    CopyPool& pool_;
    CopyQueue queue_;
    mutable Quiescence copying_;       // close() waits for the copies
    std::atomic<bool> broken_{false};  // seq_cst: asked inside a Section
    Mutex mutex_;
    Error broken_reason_ MC_GUARDED_BY(mutex_);
    std::list<Batch> batches_ MC_GUARDED_BY(mutex_);  // those of more than one chunk, and all left to the pool
};

}  // namespace mooncake
