// SPDX-License-Identifier: Apache-2.0
#include "store/client/client_metrics.h"

#include <string_view>

namespace mooncake::store {

namespace {

constexpr double kNanosecondsPerSecond = 1e9;

metrics::Labels cluster_label(const std::string& cluster_id) {
    return cluster_id.empty() ? metrics::Labels{} : metrics::Labels{{"cluster_id", cluster_id}};
}

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
    }
    return "unknown";
}

uint64_t nanoseconds_since(Time started) { return static_cast<uint64_t>((Clock::now() - started).count()); }

}  // namespace

ClientMetrics::ClientMetrics(const std::string& cluster_id)
    : read_bytes(registry.counter("mooncake_transfer_read_bytes", "Bytes of values read.", cluster_label(cluster_id))),
      write_bytes(registry.counter("mooncake_transfer_write_bytes", "Bytes of values written.", cluster_label(cluster_id))),
      get_latency(
          registry.histogram("mooncake_transfer_get_latency", "Reads of one value.", cluster_label(cluster_id), kNanosecondsPerSecond)),
      put_latency(
          registry.histogram("mooncake_transfer_put_latency", "Writes of one value.", cluster_label(cluster_id), kNanosecondsPerSecond)),
      batch_get_latency(registry.histogram("mooncake_transfer_batch_get_latency", "Reads of several values.", cluster_label(cluster_id),
                                           kNanosecondsPerSecond)),
      batch_put_latency(registry.histogram("mooncake_transfer_batch_put_latency", "Writes of several values.", cluster_label(cluster_id),
                                           kNanosecondsPerSecond)),
      lease_hits(registry.counter("mooncake_client_lease_hits_total", "Keys answered from leases we hold.", cluster_label(cluster_id))),
      lease_misses(registry.counter("mooncake_client_lease_misses_total", "Keys the master was asked for.", cluster_label(cluster_id))),
      checksum_failures(registry.counter("mooncake_client_checksum_failures_total", "Replicas whose bytes were not the value.",
                                         cluster_label(cluster_id))),
      replica_failures(registry.counter("mooncake_client_replica_failures_total", "Replicas that could not be read or written.",
                                        cluster_label(cluster_id))) {
    for (size_t i = 0; i < kMasterCalls; ++i) {
        metrics::Labels labels = cluster_label(cluster_id);
        labels.emplace_back("rpc_name", call_name(static_cast<MasterCall>(i)));
        calls[i] = {
            .count = &registry.counter("mooncake_client_rpc_count", "Calls to the master.", labels),
            .latency = &registry.histogram("mooncake_client_rpc_latency", "Of calls to the master.", labels, kNanosecondsPerSecond)};
    }
}

void ClientMetrics::observe_read(size_t values, uint64_t bytes, Time started) {
    read_bytes.add(bytes);
    (values == 1 ? get_latency : batch_get_latency).observe(nanoseconds_since(started));
}

void ClientMetrics::observe_write(size_t values, uint64_t bytes, Time started) {
    write_bytes.add(bytes);
    (values == 1 ? put_latency : batch_put_latency).observe(nanoseconds_since(started));
}

}  // namespace mooncake::store
