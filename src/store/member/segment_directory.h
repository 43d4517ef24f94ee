// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/error.h"
#include "base/thread_annotations.h"
#include "base/time.h"
#include "store/member/failure_teller.h"
#include "store/member/master_link.h"
#include "store/protocol/segments.h"

namespace mooncake::store {

/// One mounted segment as this client sees it. Immutable but for its health.
struct SegmentRecord {
    uint32_t number = 0;
    SegmentSpec spec;
};
using SegmentHandle = std::shared_ptr<const SegmentRecord>;

/// Numbers to segments, for the current life of the master, fetched when an unknown number turns up; and which of them this client
/// could not reach lately. Health belongs to the segment, not to its number: it outlives the master. Thread-safe.
class SegmentDirectory {
public:
    SegmentDirectory(MasterApi& master, ClientId client);

    /// Asks the master at most once per unknown number and epoch; single-flight. kNotFound: it knows no such segment; kStale: the epoch is over.
    Result<SegmentHandle> find(uint64_t epoch, uint32_t number, Deadline deadline);
    /// Numbers and what they mean; not who failed.
    void forget_all();

    /// A transfer to or from it failed: not tried again for a while that doubles with each failure (50 ms to 5 s), and the master is told.
    /// Transfers that were under way and fail meanwhile count as the same failure.
    void failed(const SegmentHandle& segment, Time now);
    void worked(const SegmentHandle& segment);
    bool reachable(const SegmentHandle& segment, Time now) const;
    /// How long one that failed may take to answer when it is tried again: 50 ms, or a quarter of the time for which it was left alone. Nothing: as
    /// long as any other.
    std::optional<Duration> trial(const SegmentHandle& segment) const;
    /// The numbers of those not worth trying now, for KeysRequest::unreachable; with those `also` of which nothing better is known since.
    std::vector<uint32_t> unreachable(Time now, std::span<const SegmentHandle> also = {}) const;
    bool all_reachable() const noexcept { return suspected_.load(std::memory_order_acquire) == 0; }  // cheap: nothing is suspected

    /// Tells the master nothing any more, and waits until it is so.
    void stop() { teller_.stop(); }

private:
    struct Health {
        uint32_t failures = 0;
        Time retry_at{};
        uint32_t number = 0;  // in this epoch; 0: not known
    };
    /// Nothing: the master must be asked.
    std::optional<Result<SegmentHandle>> look_up(uint64_t epoch, uint32_t number) const;
    void remember_absent(uint64_t epoch, uint32_t number);
    /// Waits for the next list, or finds that it came meanwhile. True: it was asked for by or after the caller's `wanted`.
    Result<bool> await_list(uint64_t epoch, uint32_t number, uint64_t& wanted, Deadline deadline);
    void take_list(const SegmentsReply& list);

    MasterApi& master_;

    mutable SharedMutex mutex_;
    uint64_t epoch_ MC_GUARDED_BY(mutex_) = 0;
    std::vector<uint64_t> over_ MC_GUARDED_BY(mutex_);  // the last few epochs before it
    std::unordered_map<uint32_t, SegmentHandle> by_number_ MC_GUARDED_BY(mutex_);
    std::unordered_set<uint32_t> absent_ MC_GUARDED_BY(mutex_);  // numbers are not used again within an epoch
    std::unordered_map<SegmentId, Health> suspects_ MC_GUARDED_BY(mutex_);
    std::atomic<size_t> suspected_{0};  // size of suspects_

    Mutex flight_mutex_;
    std::condition_variable_any landed_;
    bool flying_ MC_GUARDED_BY(flight_mutex_) = false;
    uint64_t begun_ MC_GUARDED_BY(flight_mutex_) = 0, ended_ MC_GUARDED_BY(flight_mutex_) = 0;
    std::optional<Error> failure_ MC_GUARDED_BY(flight_mutex_);  // of the last one

    FailureTeller teller_;
};

}  // namespace mooncake::store
