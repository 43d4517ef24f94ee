// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <set>
#include <thread>

#include "base/thread_annotations.h"
#include "base/time.h"
#include "store/member/master_link.h"

namespace mooncake::store {

/// Tells the master of segments that could not be reached, on a thread of its own (begun with the first), each at most once per call and
/// one call per interval. What cannot be told is forgotten: who meets it again says so again. Thread-safe.
class FailureTeller {
public:
    FailureTeller(MasterApi& master, ClientId client, Duration interval) : master_(master), client_(client), interval_(interval) {}
    ~FailureTeller() { stop(); }

    void tell(const SegmentId& segment);
    /// Waits for a call under way, half a second at most. Idempotent; nothing is told afterwards.
    void stop();

private:
    void run(const std::stop_token& stop);

    MasterApi& master_;
    const ClientId client_;
    const Duration interval_;
    Mutex mutex_;
    std::condition_variable_any wake_;
    std::set<SegmentId> waiting_ MC_GUARDED_BY(mutex_);  // no larger than the pool has segments
    bool stopped_ MC_GUARDED_BY(mutex_) = false;
    std::jthread thread_ MC_GUARDED_BY(mutex_);
};

}  // namespace mooncake::store
