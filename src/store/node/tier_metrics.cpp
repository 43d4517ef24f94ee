// SPDX-License-Identifier: Apache-2.0
#include "store/node/tier_metrics.h"

namespace mooncake::store {

namespace {

metrics::Counter& counter(MemberMetrics& member, const char* name, const char* help) {
    return member.registry.counter(name, help, member.labels);
}
metrics::Gauge& gauge(MemberMetrics& member, const char* name, const char* help) {
    return member.registry.gauge(name, help, member.labels);
}

}  // namespace

TierMetrics::TierMetrics(MemberMetrics& member)
    : offloaded(counter(member, "mooncake_tier_offloaded_total", "Values written from memory to the disk.")),
      offloaded_bytes(counter(member, "mooncake_tier_offloaded_bytes", "Bytes of values written from memory to the disk.")),
      offload_failures(counter(member, "mooncake_tier_offload_failures_total", "Values that could not be written to the disk.")),
      promoted(counter(member, "mooncake_tier_promoted_total", "Values copied from the disk to memory.")),
      promoted_bytes(counter(member, "mooncake_tier_promoted_bytes", "Bytes of values copied from the disk to memory.")),
      promotion_failures(counter(member, "mooncake_tier_promotion_failures_total", "Values that could not be copied to memory.")),
      staged(counter(member, "mooncake_tier_staged_total", "Parts of values staged for readers elsewhere.")),
      staged_bytes(counter(member, "mooncake_tier_staged_bytes", "Bytes staged for readers elsewhere.")),
      stage_failures(counter(member, "mooncake_tier_stage_failures_total", "Parts that could not be read for a reader elsewhere.")),
      stage_refusals(counter(member, "mooncake_tier_stage_refusals_total", "Parts that there was no staging memory for.")),
      expired_leases(counter(member, "mooncake_tier_expired_leases_total", "Staged parts that nobody gave back.")),
      local_reads(counter(member, "mooncake_tier_local_reads_total", "Reads by the client of the same process.")),
      gone(counter(member, "mooncake_tier_gone_total", "Values that went from the disk by its own decision, or were damaged.")),
      removal_failures(counter(member, "mooncake_tier_removal_failures_total", "Removals that the disk did not make durable at once.")),
      staging_bytes(gauge(member, "mooncake_tier_staging_bytes", "Memory that is used for staging.")),
      capacity_bytes_(gauge(member, "mooncake_tier_capacity_bytes", "Bytes of the disk that may be used.")),
      used_bytes_(gauge(member, "mooncake_tier_used_bytes", "Bytes of the disk that are used.")),
      live_bytes_(gauge(member, "mooncake_tier_live_bytes", "Of these, by values that can be read.")),
      objects_(gauge(member, "mooncake_tier_objects", "Values on the disk.")),
      write_errors_(gauge(member, "mooncake_tier_write_errors", "Values that the disk did not take, since the start.")),
      read_errors_(gauge(member, "mooncake_tier_read_errors", "Reads that the disk failed, since the start.")),
      corrupt_(gauge(member, "mooncake_tier_corrupt", "Values that were found damaged, since the start.")) {}

void TierMetrics::show(const TierUsage& usage) {
    capacity_bytes_.set(static_cast<int64_t>(usage.capacity_bytes));
    used_bytes_.set(static_cast<int64_t>(usage.used_bytes));
    live_bytes_.set(static_cast<int64_t>(usage.live_bytes));
    objects_.set(static_cast<int64_t>(usage.objects));
    write_errors_.set(static_cast<int64_t>(usage.write_errors));
    read_errors_.set(static_cast<int64_t>(usage.read_errors));
    corrupt_.set(static_cast<int64_t>(usage.corrupt));
}

}  // namespace mooncake::store
