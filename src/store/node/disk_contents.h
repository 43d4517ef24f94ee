// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/thread_annotations.h"
#include "base/time.h"
#include "store/member/holdings.h"
#include "store/node/disk_removals.h"
#include "store/protocol/events.h"
#include "store/tier/storage_tier.h"

namespace mooncake::store {

/// What the disk segment of this process holds. The disk's own index is the truth: here is only what the master has planned there and what it has
/// not called filled yet. What the master drops is removed from the disk; what a complete event stream does not name is, too. Thread-safe.
class DiskContents final : public Holdings {
public:
    /// A value that is to be written.
    struct Plan {
        std::string tenant, key, group;
        uint64_t length = 0;
        ObjectDataType data_type = ObjectDataType::kUnknown;
        bool hard_pin = false;
        Time soft_pin_end{};
        ClientId writer;

        /// Texts are this one's.
        TierObject object(uint64_t generation, uint64_t checksum, Time now) const;
    };
    /// Told of values that the master believes to be here and that are not. On the event stream's thread: must not block.
    using OnMissing = std::function<void(std::span<const TierObject>)>;

    /// `tier` must outlive it; it has been recovered.
    DiskContents(StorageTier& tier, SegmentSpec spec, TierMetrics& metrics, OnMissing on_missing);
    ~DiskContents() override { stop(); }

    bool add_segment(const SegmentSpec& segment) override;
    void remove_segment(const SegmentId& segment) override;
    void apply(const EventView& update, Time now) override;
    void stream_ended(bool orderly) override;
    bool report(size_t entries_max, Time now, const std::function<bool(const HeldSegment&)>& part) const override;
    bool lends() const override;

    /// Nothing: it is not wanted (any more).
    std::optional<Plan> find_planned(uint64_t generation) const;
    /// Calls `submit` with which of these are still wanted. What is dropped afterwards is behind what it hands to the disk.
    void begin_writes(std::span<const uint64_t> generations, const std::function<void(const std::vector<bool>& wanted)>& submit);
    /// A write that was begun has ended. `orphan`: its master was lost meanwhile, so nobody has asked for what may lie there now.
    void ended_write(uint64_t generation, bool written, const Plan& plan, bool orphan);

    /// Nothing is removed by itself any more. Idempotent.
    void stop();
    size_t planned() const;

private:
    struct Planned {
        Plan plan;
        bool round = false;
    };
    bool is_ours(const SegmentId& segment) const noexcept { return segment == spec_.id; }
    void plan_locked(const RangePlannedView& event, Time now) MC_REQUIRES(mutex_);
    void fill_locked(const RangeFilled& event, std::vector<Planned>& missing, std::vector<uint64_t>& generations) MC_REQUIRES(mutex_);
    void drop_locked(uint64_t generation) MC_REQUIRES(mutex_);
    void complete_locked() MC_REQUIRES(mutex_);
    void run(const std::stop_token& stop);
    /// Removes what the stream that is complete now has not named.
    void sweep(std::vector<uint64_t> told);

    StorageTier& tier_;
    const SegmentSpec spec_;
    const OnMissing on_missing_;
    DiskRemovals removals_;

    mutable Mutex mutex_;
    std::condition_variable_any changed_;
    bool lent_ MC_GUARDED_BY(mutex_) = false;
    std::unordered_map<uint64_t, Planned> planned_ MC_GUARDED_BY(mutex_);  // by generation
    bool streaming_ MC_GUARDED_BY(mutex_) = false;                         // a stream began and is not complete yet
    bool following_ MC_GUARDED_BY(mutex_) = false;                         // a complete one goes on
    bool round_ MC_GUARDED_BY(mutex_) = false;                             // flips with each stream
    std::vector<uint64_t> told_ MC_GUARDED_BY(mutex_);                     // generations, while it is streaming
    std::optional<std::vector<uint64_t>> to_sweep_ MC_GUARDED_BY(mutex_);
    bool sweeping_ MC_GUARDED_BY(mutex_) = false;
    std::unordered_set<uint64_t> fresh_ MC_GUARDED_BY(mutex_);    // planned since the stream was complete, while the disk is swept
    std::unordered_set<uint64_t> writing_ MC_GUARDED_BY(mutex_);  // with the disk
    std::jthread thread_;
};

}  // namespace mooncake::store
