// SPDX-License-Identifier: Apache-2.0
#include "store/client/client_metrics.h"

namespace mooncake::store {

namespace {

constexpr double kNanosecondsPerSecond = 1e9;

metrics::Counter& counter(MemberMetrics& member, const char* name, const char* help) {
    return member.registry.counter(name, help, member.labels);
}
metrics::Histogram& histogram(MemberMetrics& member, const char* name, const char* help) {
    return member.registry.histogram(name, help, member.labels, kNanosecondsPerSecond);
}

metrics::Labels with_tier(const MemberMetrics& member, const char* tier) {
    metrics::Labels labels = member.labels;
    labels.emplace_back("tier", tier);
    return labels;
}

uint64_t nanoseconds_since(Time started) { return static_cast<uint64_t>((Clock::now() - started).count()); }

}  // namespace

ClientMetrics::ClientMetrics(MemberMetrics& member)
    : read_bytes(counter(member, "mooncake_transfer_read_bytes", "Bytes of values read.")),
      write_bytes(counter(member, "mooncake_transfer_write_bytes", "Bytes of values written.")),
      get_latency(histogram(member, "mooncake_transfer_get_latency", "Reads of one value.")),
      put_latency(histogram(member, "mooncake_transfer_put_latency", "Writes of one value.")),
      batch_get_latency(histogram(member, "mooncake_transfer_batch_get_latency", "Reads of several values.")),
      batch_put_latency(histogram(member, "mooncake_transfer_batch_put_latency", "Writes of several values.")),
      lease_hits(counter(member, "mooncake_client_lease_hits_total", "Keys answered from leases we hold.")),
      lease_misses(counter(member, "mooncake_client_lease_misses_total", "Keys the master was asked for.")),
      checksum_failures(counter(member, "mooncake_client_checksum_failures_total", "Replicas whose bytes were not the value.")),
      replica_failures(member.replica_failures),
      memory_hits(member.registry.counter("mooncake_client_reads_total", "Values read, by where they lay.", with_tier(member, "memory"))),
      own_disk_hits(
          member.registry.counter("mooncake_client_reads_total", "Values read, by where they lay.", with_tier(member, "own_disk"))),
      disk_hits(member.registry.counter("mooncake_client_reads_total", "Values read, by where they lay.", with_tier(member, "disk"))) {}

void ClientMetrics::observe_read(size_t values, uint64_t bytes, Time started) {
    read_bytes.add(bytes);
    (values == 1 ? get_latency : batch_get_latency).observe(nanoseconds_since(started));
}

void ClientMetrics::observe_write(size_t values, uint64_t bytes, Time started) {
    write_bytes.add(bytes);
    (values == 1 ? put_latency : batch_put_latency).observe(nanoseconds_since(started));
}

}  // namespace mooncake::store
