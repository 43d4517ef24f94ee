// SPDX-License-Identifier: Apache-2.0
#include <set>

#include "base/version.h"
#include "store/admin/admin_views.h"
#include "store/admin/http_admin.h"
#include "store/admin/http_json.h"
#include "store/admin/metrics_text.h"

namespace mooncake::store {

namespace {

double percent(uint64_t part, uint64_t whole) { return whole == 0 ? 0.0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole); }

/// All of one name; null `name` or none: what to answer instead.
struct Named {
    std::vector<SegmentDetail> segments;
    uint64_t used_bytes = 0, capacity_bytes = 0;
};
Named find_named(const LockedMaster& master, std::string_view name) {
    Named named{.segments = view_segments(master, name)};
    for (const SegmentDetail& segment : named.segments) {
        if (segment.spec.kind == SegmentKind::kDisk) continue;  // a node's memory and its disk have one name
        named.used_bytes += segment.used_bytes;
        named.capacity_bytes += segment.capacity_bytes;
    }
    return named;
}

std::string_view kind_name(const SegmentDetail& segment) { return segment.spec.kind == SegmentKind::kDisk ? "disk" : "memory"; }

net::HttpResponse missing_name() { return error_answer(StoreCode::kInvalidParams, "the parameter 'segment' is missing"); }

}  // namespace

net::HttpResponse AdminService::all_segments(const Request&) const {
    std::set<std::string> names;
    for (SegmentDetail& segment : view_segments(master_)) names.insert(std::move(segment.spec.name));
    Response answer;
    for (const std::string& name : names) answer.body += name + "\n";
    return answer;
}

net::HttpResponse AdminService::query_segment(const Request& request) const {
    const std::string* name = request.parameter("segment");
    if (name == nullptr || name->empty()) return missing_name();
    const Named named = find_named(master_, *name);
    if (named.segments.empty()) return error_answer(StoreCode::kSegmentNotFound);
    return {.body = format_text("{}\nUsed(bytes): {}\nCapacity(bytes) : {}\n", *name, named.used_bytes, named.capacity_bytes)};
}

net::HttpResponse AdminService::segments_detail(const Request&) const {
    Json rows = Json::array();
    for (const SegmentDetail& segment : view_segments(master_)) {
        rows.push_back({{"segment_name", segment.spec.name},
                        {"segment_id", segment.spec.id.to_string()},
                        {"client_id", segment.client.to_string()},
                        {"base_address", format_text("{:#x}", segment.spec.base)},
                        {"size_bytes", segment.spec.size},
                        {"size_human", human_bytes(segment.spec.size)},
                        {"te_endpoint", segment.spec.endpoint},
                        {"protocol", segment.spec.protocol},
                        {"kind", kind_name(segment)},
                        {"status", segment_status_name(segment.status)},
                        {"allocator_used_bytes", segment.used_bytes},
                        {"allocator_capacity_bytes", segment.capacity_bytes},
                        {"allocator_usage_percent", percent(segment.used_bytes, segment.capacity_bytes)}});
    }
    const size_t count = rows.size();
    return json_answer({{"total_segments", count}, {"segments", std::move(rows)}});
}

net::HttpResponse AdminService::segment_status(const Request& request) const {
    const std::string* name = request.parameter("segment");
    if (name == nullptr || name->empty()) return missing_name();
    const Named named = find_named(master_, *name);
    if (named.segments.empty()) return error_answer(StoreCode::kSegmentNotFound);
    const SegmentStatus status = named.segments.front().status;
    return json_answer({{"success", true},
                        {"error_code", 0},
                        {"error_message", ""},
                        {"segment", *name},
                        {"status", static_cast<int>(status)},
                        {"status_name", segment_status_name(status)}});
}

/// What the dashboard shows; ours alone.
net::HttpResponse AdminService::overview(const Request&) const {
    const PoolView pool = view_pool(master_);
    const MasterMetrics::Lookups lookups = metrics_.lookups();
    Json segments = Json::array(), clients = Json::array();
    for (const SegmentDetail& segment : view_segments(master_)) {
        segments.push_back({{"name", segment.spec.name},
                            {"kind", kind_name(segment)},
                            {"protocol", segment.spec.protocol},
                            {"status", segment.suspect ? "UNREACHABLE" : segment_status_name(segment.status)},
                            {"used_bytes", segment.used_bytes},
                            {"capacity_bytes", segment.capacity_bytes},
                            {"client", segment.client.to_string()}});
    }
    for (const ClientView& client : view_clients(master_)) {
        clients.push_back({{"id", client.id.to_string()},
                           {"segments", client.segments},
                           {"lent_bytes", client.lent_bytes},
                           {"expires_in_ms", std::chrono::duration_cast<std::chrono::milliseconds>(client.expires_in).count()}});
    }
    return json_answer({{"version", version()},
                        {"address", options_.address},
                        {"uptime_ms", std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - started_).count()},
                        {"capacity_bytes", pool.capacity_bytes},
                        {"used_bytes", pool.used_bytes},
                        {"resting_bytes", pool.quarantined_bytes},
                        {"disk_capacity_bytes", pool.disk_capacity_bytes},
                        {"disk_used_bytes", pool.disk_used_bytes},
                        {"values_on_disk", pool.values_on_disk},
                        {"keys", pool.keys},
                        {"writes_in_progress", pool.writes},
                        {"lookup_keys", lookups.keys},
                        {"lookup_found", lookups.found},
                        {"put_keys", metrics_.total(CountedCall::kPutStart)},
                        {"get_keys", metrics_.total(CountedCall::kGetReplicaList)},
                        {"exist_keys", metrics_.total(CountedCall::kExistKey)},
                        {"removed_keys", metrics_.total(CountedCall::kRemove)},
                        {"refused_for_space", metrics_.refused_for_space()},
                        {"evicted_keys", pool.totals.evicted_objects},
                        {"evicted_bytes", pool.totals.evicted_bytes},
                        {"segments", std::move(segments)},
                        {"clients", std::move(clients)}});
}

}  // namespace mooncake::store
