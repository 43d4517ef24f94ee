// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/thread_annotations.h"
#include "store/member/doubtful_writes.h"
#include "store/member/pool_access.h"
#include "store/node/disk_contents.h"
#include "store/node/read_pressure.h"
#include "store/node/tier_metrics.h"
#include "store/node/tier_teller.h"
#include "store/protocol/events.h"
#include "store/tier/storage_tier.h"

namespace mooncake::store {

/// Carries out the master's orders to copy values between our memory and our disk (docs/tiers.md), on threads of its own. Offloads are handed to the disk
/// together, as many bytes at a time as it takes in half a second; promotions are read piece by piece, verified, and written where the master said. An
/// order that came before is not carried out again; those of a lost master are void. Thread-safe. The disk is closed before this ends.
class TierOrders {
public:
    struct Setup {
        PoolAccess& pool;
        StorageTier& tier;
        DiskContents& contents;
        TierTeller& teller;
        TierMetrics& metrics;
        ReadPressure& reads;
        SegmentId disk;
    };
    static constexpr uint64_t kWindowFirst = 64 << 20, kWindowMin = 16 << 20, kWindowMax = 1 << 30;

    explicit TierOrders(const Setup& setup);
    ~TierOrders();

    /// Does not wait. What does not fit the queue is left to time out: the master orders no more than it was told to.
    void add(CopyOrder order);
    void master_lost();
    /// Forgets what has not begun, waits for copies that have, but for those with the disk. Idempotent.
    void stop();

private:
    static constexpr size_t kQueueMax = 65'536, kRememberedMax = 100'000;
    static constexpr size_t kBatchMax = 1024;  // values that are handed to the disk together
    static constexpr size_t kPromoters = 2;

    struct Job {
        CopyOrder order;
        WriteFence::Mark asked;
    };
    /// A value on its way to the disk.
    struct Outgoing {
        Job job;
        DiskContents::Plan plan;
        std::shared_ptr<const LocalSegments::Held> memory;  // stays while the disk reads it
        std::unique_ptr<std::byte[]> copy;                  // of what could not be verified otherwise
        std::span<const std::byte> value;
    };
    struct Offload;
    struct Outcome {
        StoreCode code = StoreCode::kOk;
        SegmentHandle in_doubt;  // where bytes may still land
    };

    void run(const std::stop_token& stop);
    /// Those that may begin now.
    std::vector<Job> take(const WriteFence::Mark& now) MC_REQUIRES(mutex_);
    void begin(std::vector<Job> jobs);
    /// Nothing: it is not an offload, or was ended.
    std::optional<Outgoing> prepare(Job& job, SegmentLookup& segments);
    Outcome locate(const Job& job, const WriteFence::Pass& pass, SegmentLookup& segments, Outgoing& outgoing);
    void submit(std::vector<Outgoing> values);
    void finish(Offload& offload);
    void adapt_window(const Offload& offload, bool failed);
    void promote(const std::stop_token& stop);
    void end(const Job& job, const Outcome& outcome);
    bool settled(const TaskId& task);
    DoubtfulWrites::Hooks doubt_hooks();

    const Setup setup_;
    Mutex mutex_;
    std::condition_variable_any changed_;
    std::deque<Job> queue_ MC_GUARDED_BY(mutex_), promotions_ MC_GUARDED_BY(mutex_);
    std::vector<std::unique_ptr<Offload>> done_ MC_GUARDED_BY(mutex_);
    uint64_t under_way_ MC_GUARDED_BY(mutex_) = 0;  // bytes
    uint64_t window_ MC_GUARDED_BY(mutex_) = kWindowFirst;
    std::unordered_map<TaskId, std::optional<StoreCode>> seen_ MC_GUARDED_BY(mutex_);  // nothing: not done yet
    std::deque<TaskId> seen_order_ MC_GUARDED_BY(mutex_);
    double bytes_per_s_ = 0;  // only the orders' thread
    DoubtfulWrites doubts_;
    std::jthread thread_;
    std::vector<std::jthread> promoters_;
};

}  // namespace mooncake::store
