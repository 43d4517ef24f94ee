// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/time.h"
#include "metrics/metrics.h"
#include "store/member/member_metrics.h"

namespace mooncake::store {

/// The counters of one client, in the registry of its member, which must outlive it. Constant after construction, but for what they count.
class ClientMetrics {
public:
    explicit ClientMetrics(MemberMetrics& member);

    metrics::Counter& read_bytes;
    metrics::Counter& write_bytes;
    metrics::Histogram& get_latency;
    metrics::Histogram& put_latency;
    metrics::Histogram& batch_get_latency;
    metrics::Histogram& batch_put_latency;
    metrics::Counter& lease_hits;
    metrics::Counter& lease_misses;
    metrics::Counter& checksum_failures;
    metrics::Counter& replica_failures;  // the member's
    metrics::Counter& memory_hits;       // values, or parts of them, by where they came from
    metrics::Counter& own_disk_hits;
    metrics::Counter& disk_hits;

    void observe_read(size_t values, uint64_t bytes, Time started);
    void observe_write(size_t values, uint64_t bytes, Time started);
};

}  // namespace mooncake::store
