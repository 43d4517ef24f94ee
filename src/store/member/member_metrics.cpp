// SPDX-License-Identifier: Apache-2.0
#include "store/member/member_metrics.h"

#include <string_view>

namespace mooncake::store {

namespace {

constexpr double kNanosecondsPerSecond = 1e9;

std::string_view call_name(MasterCall call) {
    switch (call) {
        case MasterCall::kPutStart: return "put_start";
        case MasterCall::kPutEnd: return "put_end";
        case MasterCall::kPutRevoke: return "put_revoke";
        case MasterCall::kGetReplicas: return "get_replica_list";
        case MasterCall::kExist: return "exist_key";
        case MasterCall::kRemove: return "remove";
        case MasterCall::kRemoveMatching: return "remove_by_regex";
        case MasterCall::kReplicaClear: return "replica_clear";
        case MasterCall::kCreateTask: return "create_task";
        case MasterCall::kQueryTask: return "query_task";
        case MasterCall::kEndTask: return "update_task";
        case MasterCall::kEndCopies: return "end_copies";
        case MasterCall::kReplicasGone: return "replicas_gone";
    }
    return "unknown";
}

}  // namespace

MemberMetrics::MemberMetrics(const std::string& cluster_id)
    : labels(cluster_id.empty() ? metrics::Labels{} : metrics::Labels{{"cluster_id", cluster_id}}),
      replica_failures(registry.counter("mooncake_client_replica_failures_total", "Replicas that could not be read or written.", labels)) {
    for (size_t i = 0; i < kMasterCalls; ++i) {
        metrics::Labels with_name = labels;
        with_name.emplace_back("rpc_name", call_name(static_cast<MasterCall>(i)));
        calls_[i] = {
            .count = &registry.counter("mooncake_client_rpc_count", "Calls to the master.", with_name),
            .latency = &registry.histogram("mooncake_client_rpc_latency", "Of calls to the master.", with_name, kNanosecondsPerSecond)};
    }
}

}  // namespace mooncake::store
