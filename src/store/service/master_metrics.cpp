// SPDX-License-Identifier: Apache-2.0
#include "store/service/master_metrics.h"

#include <algorithm>
#include <string>

namespace mooncake::store {

namespace {

struct CallNames {
    std::string_view single;  // empty: every call is a batch
    std::string_view batch;   // empty: there is none
};

constexpr CallNames names_of(CountedCall call) {
    switch (call) {
        case CountedCall::kPutStart: return {"put_start", "put_start"};
        case CountedCall::kPutEnd: return {"put_end", "put_end"};
        case CountedCall::kPutRevoke: return {"put_revoke", "put_revoke"};
        case CountedCall::kGetReplicaList: return {"get_replica_list", "get_replica_list"};
        case CountedCall::kGetReplicaListByRegex: return {"get_replica_list_by_regex", ""};
        case CountedCall::kExistKey: return {"exist_key", "exist_key"};
        case CountedCall::kReplicaClear: return {"", "replica_clear"};
        case CountedCall::kRemove: return {"remove", "remove"};
        case CountedCall::kRemoveByRegex: return {"remove_by_regex", ""};
        case CountedCall::kRemoveAll: return {"remove_all", ""};
        case CountedCall::kMountSegment: return {"mount_segment", ""};
        case CountedCall::kUnmountSegment: return {"unmount_segment", ""};
        case CountedCall::kRemountSegment: return {"remount_segment", ""};
        case CountedCall::kPing: return {"ping", ""};
        case CountedCall::kCreateCopyTask: return {"create_copy_task", ""};
        case CountedCall::kCreateMoveTask: return {"create_move_task", ""};
        case CountedCall::kQueryTask: return {"query_task", ""};
        case CountedCall::kUpdateTask: return {"update_task", ""};
        case CountedCall::kEvictDiskReplica: return {"evict_disk_replica", ""};
    }
    return {};
}

size_t failures_in(const CodesReply& reply) {
    return static_cast<size_t>(
        std::count_if(reply.codes.begin(), reply.codes.end(), [](StoreCode code) { return code != StoreCode::kOk; }));
}

}  // namespace

MasterMetrics::MasterMetrics()
    : gets_(registry_.counter("total_get_nums_", "keys whose place was asked for")),
      gets_found_(registry_.counter("valid_get_nums_", "keys whose place was given out")),
      hits_(registry_.counter("mem_cache_hit_nums_", "keys whose place in memory was given out")),
      hit_bytes_(registry_.counter("mem_cache_hit_bytes_total", "bytes of the values whose place in memory was given out")),
      exist_found_(registry_.counter("master_exist_key_found_total", "keys reported to exist")),
      allocation_failures_(registry_.counter("master_put_start_alloc_failures_total", "values refused for lack of memory")),
      partial_allocations_(
          registry_.counter("master_put_start_partial_allocations_total", "values that got fewer replicas than asked for")),
      value_size_(registry_.histogram("master_value_size_bytes", "lengths of the values being written")) {
    const auto counter = [this](std::string_view prefix, std::string_view name, std::string_view what, std::string_view help) {
        return &registry_.counter(format_text("master_{}{}_{}_total", prefix, name, what), format_text("{} of {}{}", help, prefix, name));
    };
    for (size_t i = 0; const char* kind : {"total", "mem"}) {
        evictions_attempted_[i] = &registry_.counter(format_text("master_attempted_evictions_{}", kind),
                                                     "runs of the eviction job above the high watermark");
        evictions_successful_[i++] = &registry_.counter(format_text("master_successful_evictions_{}", kind),
                                                        "such runs that evicted something");
    }
    for (size_t i = 0; i < kCalls; ++i) {
        const auto [single, batch] = names_of(static_cast<CountedCall>(i));
        Counters& counters = calls_[i];
        if (!single.empty()) {
            counters.requests = counter("", single, "requests", "calls");
            counters.failures = counter("", single, "failures", "failed calls");
        }
        if (!batch.empty()) {
            counters.batch_requests = counter("batch_", batch, "requests", "calls");
            counters.batch_failures = counter("batch_", batch, "failures", "calls without any success");
            counters.batch_partial_successes = counter("batch_", batch, "partial_successes", "calls with some failed keys");
            counters.batch_items = counter("batch_", batch, "items", "keys");
            counters.batch_failed_items = counter("batch_", batch, "failed_items", "failed keys");
        }
    }
}

void MasterMetrics::call(CountedCall call, bool ok) {
    Counters& counters = calls_[static_cast<size_t>(call)];
    if (counters.requests == nullptr) return items(call, 1, ok ? 0 : 1);
    counters.requests->add();
    if (!ok) counters.failures->add();
}

void MasterMetrics::items(CountedCall call, size_t count, size_t failed) {
    Counters& counters = calls_[static_cast<size_t>(call)];
    if (count == 1 && counters.requests != nullptr) return this->call(call, failed == 0);
    counters.batch_requests->add();
    counters.batch_items->add(count);
    if (failed == 0) return;
    counters.batch_failed_items->add(failed);
    (failed == count ? counters.batch_failures : counters.batch_partial_successes)->add();
}

void MasterMetrics::codes(CountedCall call, const CodesReply& reply) { items(call, reply.codes.size(), failures_in(reply)); }

void MasterMetrics::tenant_refused(std::string_view tenant, const char* reason) {
    const metrics::Labels labels = {{"tenant_id", std::string(tenant)}, {"reason", reason}};
    registry_.counter("mooncake_tenant_quota_reject_total", "values refused for reasons of tenancy", labels).add();
}

void MasterMetrics::put_start(const PutStartRequest& request, const PutStartReply& reply) {
    size_t failed = 0, no_space = 0, partial = 0;
    for (size_t i = 0; i < reply.items.size(); ++i) {
        const PutStartItem& item = reply.items[i];
        if (item.code != StoreCode::kOk) {
            ++failed;
            if (item.code == StoreCode::kNoAvailableHandle) ++no_space;
            if (item.code == StoreCode::kTenantQuotaExceeded) tenant_refused(request.tenant, "quota_exceeded");
            // Under a fixed name: strangers could call themselves anything.
            if (item.code == StoreCode::kTenantNotRegistered) tenant_refused("", "not_registered");
            continue;
        }
        if (item.replica_count < request.config.replica_num) ++partial;
        if (i < request.items.size()) value_size_.observe(request.items[i].length);
    }
    if (no_space != 0) allocation_failures_.add(no_space);
    if (partial != 0) partial_allocations_.add(partial);
    items(CountedCall::kPutStart, reply.items.size(), failed);
}

void MasterMetrics::get_replicas(const GetReply& reply, uint64_t on_disk, uint64_t on_disk_bytes) {
    size_t found = 0;
    uint64_t bytes = 0;
    for (const GetItem& item : reply.items) {
        if (item.code != StoreCode::kOk) continue;
        ++found;
        bytes += item.length;
    }
    gets_.add(reply.items.size());
    if (found != 0) {
        gets_found_.add(found);
        hits_.add(found - std::min<uint64_t>(found, on_disk));
        hit_bytes_.add(bytes - std::min(bytes, on_disk_bytes));
    }
    items(CountedCall::kGetReplicaList, reply.items.size(), reply.items.size() - found);
}

void MasterMetrics::exist(const ExistReply& reply) {
    size_t found = 0, failed = 0;
    for (const int32_t result : reply.results) {
        if (result > 0) ++found;
        if (result < 0) ++failed;
    }
    if (found != 0) exist_found_.add(found);
    items(CountedCall::kExistKey, reply.results.size(), failed);
}

void MasterMetrics::remount(const RemountReply& reply) {
    call(CountedCall::kRemountSegment,
         std::all_of(reply.segments.begin(), reply.segments.end(), [](const auto& segment) { return segment.code == StoreCode::kOk; }));
}

void MasterMetrics::evicted(const EvictionRun& run) {
    for (size_t i = 0; i < evictions_attempted_.size(); ++i) {
        if (run.over) evictions_attempted_[i]->add();
        if (run.entries != 0) evictions_successful_[i]->add();
    }
}

uint64_t MasterMetrics::total(CountedCall call) const {
    const Counters& counters = calls_[static_cast<size_t>(call)];
    return (counters.requests != nullptr ? counters.requests->value() : 0) +
           (counters.batch_items != nullptr ? counters.batch_items->value() : 0);
}

MasterMetrics::Lookups MasterMetrics::lookups() const {
    return {.keys = total(CountedCall::kGetReplicaList) + total(CountedCall::kExistKey), .found = hits_.value() + exist_found_.value()};
}

}  // namespace mooncake::store
