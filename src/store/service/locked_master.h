// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "base/thread_annotations.h"
#include "base/time.h"
#include "store/master/state.h"
#include "store/master/transaction.h"

namespace mooncake::store {

/// Where changes go that somebody must hear of before the one who caused them is answered.
class FeedSink {
public:
    virtual ~FeedSink() = default;
    /// Called without the lock, after each operation: returns when everything that was observed up to now is on its way.
    virtual void flush() = 0;
};

/// The master's state behind one lock. Operations are short and bounded; parsing and building messages is done outside. Thread-safe.
class LockedMaster {
public:
    /// `observer` sees every change, under the lock. Both must outlive it; the sink may be null.
    LockedMaster(const MasterOptions& options, StateObserver* observer, FeedSink* sink);

    /// Runs `operation(Transaction&, Time now)` and returns its result once the feeds have been flushed. Should it throw, what it has changed
    /// until then stays, and is flushed as well: the state agrees with itself after every change.
    template <typename Operation>
    auto run(Operation&& operation) {
        const Flush flush(sink_);  // after the lock is given back
        Lock lock(mutex_);
        Transaction transaction(state_);
        return operation(transaction, Clock::now());
    }
    /// As run(), only looking: `look(const MasterState&, Time now)`.
    template <typename Look>
    auto look(Look&& look) const {
        Lock lock(mutex_);
        return look(std::as_const(state_), Clock::now());
    }

private:
    class Flush {
    public:
        explicit Flush(FeedSink* sink) : sink_(sink) {}
        /// What could not be sent to a node would be missing there for ever: to throw here ends the process, as in any destructor.
        ~Flush() {
            if (sink_ != nullptr) sink_->flush();
        }
        Flush(const Flush&) = delete;
        Flush& operator=(const Flush&) = delete;

    private:
        FeedSink* const sink_;
    };

    mutable Mutex mutex_;
    MasterState state_ MC_GUARDED_BY(mutex_);
    FeedSink* const sink_;
};

}  // namespace mooncake::store
