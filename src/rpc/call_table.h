// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/completion.h"
#include "base/error.h"
#include "base/time.h"
#include "rpc/rpc.h"

namespace mooncake::rpc {

/// Where a blocked caller gets its result; on the caller's stack.
struct Waiter {
    Completion done;
    Result<Bytes> result = Bytes();
};

/// One call that was not answered yet. Exactly one of waiter and callback is set.
struct PendingCall {
    uint64_t id = 0;
    Deadline deadline = Deadline::never();
    Waiter* waiter = nullptr;
    Callback callback;
    std::shared_ptr<const PartCallback> on_part;  // of a stream

    /// Hands the result to whoever waits. The callback runs here.
    void finish(Result<Bytes> result);
};

/// The outstanding calls of one address, by id. An id is `number` in its upper 20 bits and a sequence below; it is also the
/// slot: a sequence whose slot is taken by a long call is skipped, so inserting and taking touch one slot and allocate nothing.
/// Not thread-safe.
class CallTable {
public:
    static constexpr int kSequenceBits = 44;
    static constexpr uint64_t kNumberMax = (uint64_t{1} << (64 - kSequenceBits)) - 1;

    explicit CallTable(uint64_t number);
    static uint64_t number_of(uint64_t id) noexcept { return id >> kSequenceBits; }

    /// Gives the call its id.
    uint64_t insert(PendingCall call);
    std::optional<PendingCall> take(uint64_t id);
    /// What takes the parts of this call; null: unknown, or not a stream.
    std::shared_ptr<const PartCallback> on_part(uint64_t id) const;
    bool contains(uint64_t id) const { return slots_[id & (slots_.size() - 1)].id == id; }
    /// Of a call that is there: its caller is blocked.
    bool blocking(uint64_t id) const { return slots_[id & (slots_.size() - 1)].waiter != nullptr; }
    std::vector<PendingCall> take_all();
    /// The calls with callbacks whose deadline has passed; blocked callers see to their own.
    std::vector<PendingCall> take_expired(Time now);
    /// The earliest deadline of the calls with callbacks.
    Deadline next_deadline() const;
    size_t size() const noexcept { return size_; }

private:
    void grow();
    PendingCall remove(PendingCall& slot);

    const uint64_t number_;
    uint64_t sequence_ = 0;
    size_t size_ = 0;
    std::vector<PendingCall> slots_;  // a power of two of them; id 0 is free
};

}  // namespace mooncake::rpc
