// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

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
    kEndCopies,
    kReplicasGone,
};
constexpr size_t kMasterCalls = static_cast<size_t>(MasterCall::kReplicasGone) + 1;

/// The counters of one member of a pool, and the registry that whoever shares its membership adds to. Constant after construction, but
/// for what they count.
class MemberMetrics {
public:
    explicit MemberMetrics(const std::string& cluster_id);

    metrics::Registry registry;
    const metrics::Labels labels;  // of every metric
    metrics::Counter& replica_failures;

    struct PerCall {
        metrics::Counter* count = nullptr;
        metrics::Histogram* latency = nullptr;
    };
    PerCall& of(MasterCall call) noexcept { return calls_[static_cast<size_t>(call)]; }

private:
    std::array<PerCall, kMasterCalls> calls_;
};

}  // namespace mooncake::store
