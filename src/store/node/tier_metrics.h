// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "metrics/metrics.h"
#include "store/member/member_metrics.h"
#include "store/tier/storage_tier.h"

namespace mooncake::store {

/// What a node counts of its disk, in the registry of its member, which must outlive it. Constant after construction, but for what they count.
class TierMetrics {
public:
    explicit TierMetrics(MemberMetrics& member);

    metrics::Counter& offloaded;
    metrics::Counter& offloaded_bytes;
    metrics::Counter& offload_failures;
    metrics::Counter& promoted;
    metrics::Counter& promoted_bytes;
    metrics::Counter& promotion_failures;
    metrics::Counter& staged;
    metrics::Counter& staged_bytes;
    metrics::Counter& stage_failures;
    metrics::Counter& stage_refusals;  // no staging memory was free
    metrics::Counter& expired_leases;
    metrics::Counter& local_reads;
    metrics::Counter& gone;
    metrics::Counter& removal_failures;
    metrics::Gauge& staging_bytes;

    /// What the disk says of itself.
    void show(const TierUsage& usage);

private:
    metrics::Gauge& capacity_bytes_;
    metrics::Gauge& used_bytes_;
    metrics::Gauge& live_bytes_;
    metrics::Gauge& objects_;
    metrics::Gauge& write_errors_;
    metrics::Gauge& read_errors_;
    metrics::Gauge& corrupt_;
};

}  // namespace mooncake::store
