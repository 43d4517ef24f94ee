// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/time.h"
#include "metrics/metrics.h"

namespace mooncake::store {

enum class MasterCall : uint8_t {
    kPutStart,
    kPutEnd,
    kPutRevoke,
    kGetReplicas,
    kExist,
    kRemove,
    kRemoveMatching,
    kReplicaClear,
    kCreateTask,
    kQueryTask,
    kEndTask,
};
constexpr size_t kMasterCalls = static_cast<size_t>(MasterCall::kEndTask) + 1;

/// The counters of one client. Constant after construction, but for what they count.
class ClientMetrics {
public:
    explicit ClientMetrics(const std::string& cluster_id);

    metrics::Registry registry;
    metrics::Counter& read_bytes;
    metrics::Counter& write_bytes;
    metrics::Histogram& get_latency;
    metrics::Histogram& put_latency;
    metrics::Histogram& batch_get_latency;
    metrics::Histogram& batch_put_latency;
    metrics::Counter& lease_hits;
    metrics::Counter& lease_misses;
    metrics::Counter& checksum_failures;
    metrics::Counter& replica_failures;

    struct PerCall {
        metrics::Counter* count = nullptr;
        metrics::Histogram* latency = nullptr;
    };
    std::array<PerCall, kMasterCalls> calls;

    PerCall& of(MasterCall call) noexcept { return calls[static_cast<size_t>(call)]; }
    void observe_read(size_t values, uint64_t bytes, Time started);
    void observe_write(size_t values, uint64_t bytes, Time started);
};

}  // namespace mooncake::store
