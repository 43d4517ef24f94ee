// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/thread_annotations.h"
#include "base/time.h"
#include "store/master/state.h"
#include "store/master/transaction.h"
#include "store/service/yielding_mutex.h"

namespace mooncake::store {

/// Where changes go that somebody must hear of before the one who caused them is answered.
class EventSink {
public:
    virtual ~EventSink() = default;
    /// Called without the lock, after each operation: returns when everything that was observed up to now is on its way.
    virtual void flush() = 0;
    /// Called with the lock, before each operation: what has become true of the state since the last one, by what was sent.
    virtual void catch_up(Transaction& transaction, Time now) = 0;
};

/// The master's state behind one lock. Operations are short and bounded: what is long is done in parts, and lets others go first between
/// them. Parsing and building messages is done outside. Thread-safe.
class LockedMaster {
public:
    /// `observer` sees every change, under the lock. Both must outlive it; the sink may be null.
    LockedMaster(const MasterOptions& options, StateObserver* observer, EventSink* sink);

    /// Runs `operation(Transaction&, Time now)` and returns its result once the event streams have been flushed. Should it throw, what it has changed
    /// until then stays, and is flushed as well: the state agrees with itself after every change.
    template <typename Operation>
    auto run(Operation&& operation) {
        const Flush flush(sink_);  // after the lock is given back
        YieldingLock lock(mutex_);
        ++holds_;
        Transaction transaction(state_);
        const Time now = Clock::now();
        if (sink_ != nullptr) sink_->catch_up(transaction, now);
        return operation(transaction, now);
    }
    /// As run(), only looking: `look(const MasterState&, Time now)`.
    template <typename Look>
    auto look(Look&& look) const {
        YieldingLock lock(mutex_);
        ++holds_;
        return look(std::as_const(state_), Clock::now());
    }

    /// Between the parts of a long operation: lets somebody else go first who waits for the lock.
    void give_way() const { mutex_.give_way(); }
    /// How many wait for the lock now.
    size_t waiting() const noexcept { return mutex_.waiting(); }
    /// How often the lock was taken so far; with the lock.
    uint64_t holds() const {
        return look([this](const MasterState&, Time) MC_NO_THREAD_ANALYSIS { return holds_; });
    }

private:
    class Flush {
    public:
        explicit Flush(EventSink* sink) : sink_(sink) {}
        /// What could not be sent to a node would be missing there for ever: to throw here ends the process, as in any destructor.
        ~Flush() {
            if (sink_ != nullptr) sink_->flush();
        }
        Flush(const Flush&) = delete;
        Flush& operator=(const Flush&) = delete;

    private:
        EventSink* const sink_;
    };

    mutable YieldingMutex mutex_;
    MasterState state_ MC_GUARDED_BY(mutex_);
    mutable uint64_t holds_ MC_GUARDED_BY(mutex_) = 0;
    EventSink* const sink_;
};

}  // namespace mooncake::store
