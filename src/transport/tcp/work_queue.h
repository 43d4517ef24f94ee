// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "base/thread_annotations.h"
#include "transport/tcp/stream.h"
#include "transport/transport.h"

namespace mooncake::tcp {

/// Operations of one completion that ended together. Collected while locks are held, delivered when they are not.
struct Finished {
    Completion* completion = nullptr;
    uint32_t operations = 0;
    uint64_t bytes = 0;
    Error error;
    bool failed = false;
};

/// Why everything ends, and what one completion that is the cause of it hears instead.
struct Verdict {
    Error error;
    const Completion* special = nullptr;
    Error reason;

    const Error& on(const Completion* completion) const noexcept { return completion == special ? reason : error; }
};

/// Some have their place in the list itself, so that there is no end of a connection that needs memory.
class FinishedList {
public:
    void succeed(Completion* completion, uint32_t operations, uint64_t bytes);
    void fail(Completion* completion, uint32_t operations, const Error& error);
    /// False: there is no room, nor memory for more, before those that are here are delivered.
    bool try_fail(Completion* completion, uint32_t operations, const Error& error) noexcept;
    bool empty() const noexcept { return count_ == 0; }
    /// Tells the completions, which may be gone afterwards.
    void deliver() noexcept;

private:
    Finished* last() noexcept { return !more_.empty() ? &more_.back() : count_ > 0 ? &first_[count_ - 1] : nullptr; }
    Finished& add();

    std::array<Finished, 4> first_;
    size_t count_ = 0;            // of first_
    std::vector<Finished> more_;  // once first_ is full
};

/// One message of an initiator, from being cut out of the queue to the end of its answer. All of it belongs to one completion,
/// so that a refusal never hits anybody else.
struct Flight {
    uint64_t id = 0;
    Direction direction = Direction::kRead;
    Completion* completion = nullptr;  // null: nobody wants the answer any more
    std::span<const Slice> source;     // what it was cut from: whole slices, or `bytes` bytes of one
    uint64_t offset = 0;               // of the part, in its slice
    uint32_t operations = 0;
    uint32_t bytes = 0;
    bool mapped = false;               // every piece of local memory is registered, hence there, as far as we know
    bool part = false;                 // of one slice; then `remote` is the slice, and the part
    Outgoing out;                      // the request
    Pieces local;                      // kRead: where the answer goes
    std::vector<AddressRange> remote;  // used while building the request
    std::vector<Unseen> unseen;        // of what is moved
    bool shown = false;                // they are seen: once is enough

    /// Makes the request (without head) and the places of the answer anew, from the source.
    void build(bool checked);
    void show() noexcept {
        for (const Unseen& one : unseen) one.show();
        shown = true;
    }

private:
    friend class WorkQueue;
    void begin(bool checked);
    void append(const Slice& slice, uint64_t from, uint64_t length);
};

/// The slices a peer has not yet begun to move. Holds spans of the callers' arrays, so it needs no limit. Submissions take turns,
/// so that a small one does not wait for the end of a large one. Thread-safe.
class WorkQueue {
public:
    /// False once closed.
    bool push(Direction direction, std::span<const Slice> slices);
    /// Cuts the next message: flight's direction, completion, operations, bytes, local memory (in out.payload() or local) and
    /// remote. False when there is nothing. What is left of a slice of which a part has failed already is not cut, but ends here. All local
    /// memory is the host's.
    bool pull(Flight& flight, bool checked, FinishedList& finished);
    /// Takes back, and fails, all slices of a completion and of its parts.
    void remove(const Completion& completion, const Error& reason, FinishedList& finished);
    /// Refuses further work, for good.
    void close() noexcept;
    /// After close(): fails what is here. False: there is more than the list takes.
    bool fail_all(const Verdict& verdict, FinishedList& finished) noexcept;

    /// May be out of date when it returns.
    bool empty() const noexcept { return count_.load(std::memory_order_seq_cst) == 0; }

private:
    struct Entry {
        Direction direction;
        std::span<const Slice> slices;  // not empty
        uint64_t offset = 0;            // of the first slice, what is already cut off
    };

    static void take_whole_slices(Entry& entry, Flight& flight);
    static void take_part(Entry& entry, Flight& flight);
    bool drop_first(FinishedList& finished) MC_REQUIRES(mutex_);

    mutable Mutex mutex_;
    std::deque<Entry> entries_ MC_GUARDED_BY(mutex_);
    bool closed_ MC_GUARDED_BY(mutex_) = false;
    std::atomic<size_t> count_{0};  // entries
};

}  // namespace mooncake::tcp
