// SPDX-License-Identifier: Apache-2.0
#include "store/admin/metrics_text.h"

#include <map>
#include <utility>

#include "store/admin/admin_views.h"

namespace mooncake::store {

namespace {

double ratio(uint64_t part, uint64_t whole) { return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole); }

/// A registry made for one reading: gauges that are set once.
struct Snapshot {
    void gauge(const std::string& name, const std::string& help, uint64_t value, const metrics::Labels& labels = {}) {
        registry.gauge(name, help, labels).set(static_cast<int64_t>(value));
    }
    void counter(const std::string& name, const std::string& help, uint64_t value, const metrics::Labels& labels = {}) {
        registry.counter(name, help, labels).add(value);
    }
    metrics::Registry registry;
};

void add_pool(Snapshot& snapshot, const PoolView& pool) {
    snapshot.gauge("master_allocated_bytes", "memory of the pool in use", pool.used_bytes);
    snapshot.gauge("master_total_capacity_bytes", "memory of the pool", pool.capacity_bytes);
    snapshot.gauge("master_resting_bytes", "memory that may be used again when leases on it are over", pool.quarantined_bytes);
    snapshot.gauge("master_allocated_file_size_bytes", "values on disk", pool.disk_used_bytes);
    snapshot.gauge("master_total_file_capacity_bytes", "disk of the pool", pool.disk_capacity_bytes);
    snapshot.gauge("master_key_count", "keys, with those being written", pool.keys);
    snapshot.gauge("master_writes_in_progress", "values between put_start and put_end", pool.writes);
    snapshot.gauge("master_active_clients", "clients that live", pool.clients);
    snapshot.gauge("mem_cache_nums_", "values in memory", pool.values_in_memory);
    snapshot.gauge("file_cache_nums_", "values on disk", pool.values_on_disk);
    snapshot.counter("file_cache_hit_nums_", "keys that lie on disk alone and whose place was given out", pool.tiers.reads);
    snapshot.counter("file_cache_hit_bytes_total", "their bytes", pool.tiers.read_bytes);
    snapshot.counter("master_put_start_discard_cnt", "writes taken from their writer", pool.totals.discarded_writes);
    snapshot.counter("master_put_start_release_cnt", "writes given up after the release time", pool.totals.expired_writes);
    snapshot.gauge("master_put_start_discarded_staging_size", "memory that waits for the end of leases and lost writers",
                   pool.quarantined_bytes);
    snapshot.gauge("master_soft_pin_key_count", "keys whose soft pin has not ended", pool.soft_pinned);
    for (const char* suffix : {"", "_mem"}) {
        snapshot.counter(format_text("master_evicted_key_count{}", suffix), "keys evicted", pool.totals.evicted_objects);
        snapshot.counter(format_text("master_evicted_size_bytes{}", suffix), "bytes evicted", pool.totals.evicted_bytes);
    }
}

void add_tiers(Snapshot& snapshot, const PoolView& pool) {
    const TierTotals& totals = pool.tiers;
    snapshot.gauge("master_offload_queue_length", "values that wait for a disk", pool.offloads_waiting);
    snapshot.gauge("master_offload_in_flight", "values that are being written to disks", pool.offloads_under_way);
    snapshot.gauge("master_tier_bytes_in_flight", "bytes under way between memory and disks", pool.tier_bytes_under_way);
    snapshot.counter("master_offload_queued_total", "values that were to be written to disks", totals.offloads.queued);
    snapshot.counter("master_offload_completed_total", "of these, written", totals.offloads.ended);
    snapshot.counter("master_offload_completed_bytes_total", "their bytes", totals.offloads.ended_bytes);
    snapshot.counter("master_offload_failed_total", "refused by the disk", totals.offloads.failed);
    snapshot.counter("master_offload_cancelled_total", "removed, replaced or lost meanwhile", totals.offloads.cancelled);
    snapshot.counter("master_offload_expired_total", "not carried out in time", totals.offloads.expired);
    snapshot.counter("master_offload_rejected_cap_total", "did not fit into the queue, and were found again later",
                     totals.offloads.no_room);
    snapshot.counter("master_offload_released_total", "values that left memory, being on a disk", totals.released);
    snapshot.counter("master_offload_released_bytes_total", "their bytes of memory", totals.released_bytes);
    snapshot.counter("master_disk_replicas_gone_total", "values that nodes gave up on their disks", totals.gone);
    snapshot.gauge("master_promotion_queue_length", "values that wait to come back to memory", pool.promotions_waiting);
    snapshot.gauge("master_promotion_in_flight", "values on their way back to memory", pool.promotions_under_way);
    const std::pair<const char*, uint64_t> promotions[] = {{"admitted", totals.promotions.queued},
                                                           {"completed", totals.promotions.ended},
                                                           {"completed_bytes", totals.promotions.ended_bytes},
                                                           {"failed", totals.promotions.failed},
                                                           {"cancelled", totals.promotions.cancelled},
                                                           {"expired", totals.promotions.expired},
                                                           {"rejected_cap", totals.promotions.no_room},
                                                           {"rejected_frequency", totals.too_seldom},
                                                           {"rejected_watermark", totals.too_full}};
    for (const auto& [name, value] : promotions)
        snapshot.counter(format_text("master_promotion_{}_total", name), "values that were read from a disk", value);
}

void add_copies(Snapshot& snapshot, const StateTotals& totals) {
    // Nobody asks for these one by one: the master orders, and the owner of the source reports once.
    const auto call = [&](const std::string& name, const std::string& what, uint64_t count) {
        snapshot.counter(format_text("master_{}_requests_total", name), what, count);
        snapshot.counter(format_text("master_{}_failures_total", name), format_text("{}, refused", what), 0);
    };
    for (const auto& [name, copies] : {std::pair{"copy", totals.copies}, std::pair{"move", totals.moves}}) {
        call(format_text("{}_start", name), "orders given", copies.started);
        call(format_text("{}_end", name), "orders carried out", copies.ended);
        call(format_text("{}_revoke", name), "orders that came to nothing", copies.revoked);
    }
    call("fetch_tasks", "orders that nodes were told", totals.copies.started + totals.moves.started);
}

/// Of things that this master does not have: dashboards look for them all the same.
void add_absent(Snapshot& snapshot) {
    constexpr const char* kGauges[] = {"master_nof_allocated_bytes", "master_total_nof_capacity_bytes"};
    constexpr const char* kCounters[] = {"master_attempted_evictions_nof", "master_successful_evictions_nof",
                                         "master_evicted_key_count_nof", "master_evicted_size_bytes_nof"};
    constexpr const char* kPromotions[] = {"candidate_recorded",      "candidate_admitted",          "candidate_admission_rejected",
                                           "candidate_dropped_limit", "candidate_expired_evaluated", "candidate_expired_unevaluated"};
    constexpr const char* kStandby[] = {"oplog_last_sequence_id", "oplog_applied_sequence_id",   "oplog_standby_lag",
                                        "oplog_pending_entries",  "pending_mutation_queue_size", "standby_state"};
    constexpr const char* kCalls[] = {"mount_nof_segment", "unmount_nof_segment", "remount_nof_segment"};
    for (const char* name : kGauges) snapshot.gauge(name, "there is no such storage", 0);
    for (const char* name : kCounters) snapshot.counter(name, "there is no such storage", 0);
    for (const char* name : kPromotions)
        snapshot.counter(format_text("master_promotion_{}_total", name), "there are no candidates apart from what is admitted", 0);
    for (const char* name : kStandby) snapshot.gauge(format_text("ha_{}", name), "there is no standby", 0);
    for (const char* name : kCalls) {
        snapshot.counter(format_text("master_{}_requests_total", name), "there is no such storage", 0);
        snapshot.counter(format_text("master_{}_failures_total", name), "there is no such storage", 0);
    }
    for (const char* what : {"requests", "failures", "partial_successes", "items", "failed_items"})
        snapshot.counter(format_text("master_batch_query_ip_{}_total", what), "clients name their hosts themselves", 0);
}

void add_segments(Snapshot& snapshot, const LockedMaster& master) {
    std::map<std::string, std::pair<uint64_t, uint64_t>> by_name;  // used, capacity
    for (const SegmentDetail& segment : view_segments(master)) {
        if (segment.spec.kind == SegmentKind::kDisk) {  // one per node and path
            const metrics::Labels labels = {{"segment", segment.spec.name}, {"segment_id", segment.spec.id.to_string()}};
            snapshot.gauge("disk_segment_allocated_bytes", "disk of the node in use", segment.used_bytes, labels);
            snapshot.gauge("disk_segment_total_capacity_bytes", "disk of the node", segment.capacity_bytes, labels);
            continue;
        }
        auto& [used, capacity] = by_name[segment.spec.name];
        used += segment.used_bytes;
        capacity += segment.capacity_bytes;
    }
    for (const auto& [name, bytes] : by_name) {
        snapshot.gauge("segment_allocated_bytes", "memory of the segment in use", bytes.first, {{"segment", name}});
        snapshot.gauge("segment_total_capacity_bytes", "memory of the segment", bytes.second, {{"segment", name}});
    }
}

void add_tenants(Snapshot& snapshot, const LockedMaster& master, uint64_t capacity_bytes) {
    uint64_t requested = 0, effective = 0;
    for (const TenantView& tenant : view_tenants(master)) {
        const TenantQuota& quota = tenant.quota;
        const metrics::Labels labels = {{"tenant_id", quota.tenant}};
        snapshot.gauge("mooncake_tenant_quota_requested_bytes", "what its policy says", quota.requested_bytes, labels);
        snapshot.gauge("mooncake_tenant_quota_effective_bytes", "its share of what there is", quota.effective_bytes, labels);
        snapshot.gauge("mooncake_tenant_quota_charged_bytes", "what it uses", quota.charged_bytes, labels);
        snapshot.gauge("mooncake_tenant_quota_admission_closed", "1: it may not write", quota.admission_closed ? 1 : 0, labels);
        snapshot.gauge("mooncake_tenant_quota_over_quota", "1: it uses more than its share", quota.over_quota ? 1 : 0, labels);
        snapshot.gauge("mooncake_tenant_quota_explicit_policy", "1: it has a policy", quota.explicit_policy ? 1 : 0, labels);
        snapshot.counter("mooncake_tenant_evict_bytes_total", "bytes of it that were evicted", tenant.evicted_bytes, labels);
        requested += quota.requested_bytes;
        effective += quota.effective_bytes;
    }
    snapshot.gauge("mooncake_tenant_quota_allocatable_capacity_bytes", "what can be shared out", capacity_bytes);
    snapshot.gauge("mooncake_tenant_quota_requested_bytes_sum", "of all tenants", requested);
    snapshot.gauge("mooncake_tenant_quota_effective_bytes_sum", "of all tenants", effective);
}

}  // namespace

std::string human_bytes(uint64_t bytes) {
    constexpr const char* kUnits[] = {"B", "KB", "MB", "GB", "TB", "PB", "EB"};
    if (bytes < 1024) return format_text("{} B", bytes);
    auto value = static_cast<double>(bytes);
    size_t unit = 0;
    for (; value >= 1024; ++unit) value /= 1024;
    return format_text("{:.2f} {}", value, kUnits[unit]);
}

std::string state_metrics(const LockedMaster& master) {
    Snapshot snapshot;
    const PoolView pool = view_pool(master);
    add_pool(snapshot, pool);
    add_copies(snapshot, pool.totals);
    add_tiers(snapshot, pool);
    add_absent(snapshot);
    add_segments(snapshot, master);
    if (master.look([](const MasterState& state, Time) { return state.options().tenants; }))
        add_tenants(snapshot, master, pool.capacity_bytes);
    return snapshot.registry.to_prometheus_text();
}

std::string state_summary(const LockedMaster& master, const MasterMetrics& metrics) {
    const PoolView pool = view_pool(master);
    const MasterMetrics::Lookups lookups = metrics.lookups();
    return format_text(
        "memory {} of {} ({:.1f} %){}, {} keys, {} clients, {} segments | keys asked: put {}, get {}, exist {}, remove {} | found {:.1f} % "
        "of {} | evicted {} keys, {} | refused for space {}\n",
        human_bytes(pool.used_bytes), human_bytes(pool.capacity_bytes), 100 * ratio(pool.used_bytes, pool.capacity_bytes),
        pool.disks == 0 ? std::string()
                        : format_text(", disk {} of {}", human_bytes(pool.disk_used_bytes), human_bytes(pool.disk_capacity_bytes)),
        pool.keys, pool.clients, pool.segments, metrics.total(CountedCall::kPutStart), metrics.total(CountedCall::kGetReplicaList),
        metrics.total(CountedCall::kExistKey), metrics.total(CountedCall::kRemove), 100 * ratio(lookups.found, lookups.keys), lookups.keys,
        pool.totals.evicted_objects, human_bytes(pool.totals.evicted_bytes), metrics.refused_for_space());
}

}  // namespace mooncake::store
