// SPDX-License-Identifier: Apache-2.0
#include "store/admin/http_admin.h"

#include "base/parse_switch.h"
#include "store/admin/admin_views.h"
#include "store/admin/http_dashboard.h"
#include "store/admin/http_json.h"
#include "store/admin/metrics_text.h"
#include "store/service/remove_in_parts.h"

namespace mooncake::store {

namespace {

constexpr const char* kMetricsType = "text/plain; version=0.0.4; charset=utf-8";

net::HttpHandler text(std::string body, std::string type = "text/plain; charset=utf-8") {
    return [body = std::move(body), type = std::move(type)](const net::HttpServerRequest&) {
        return net::HttpResponse{.body = body, .content_type = type};
    };
}

}  // namespace

AdminService::AdminService(LockedMaster& master, MasterMetrics& metrics, AdminOptions options)
    : master_(master), metrics_(metrics), options_(std::move(options)) {}

void AdminService::attach(net::HttpServer& server) {
    const auto add = [&](const char* method, const char* path, auto member) {
        server.handle(method, path, [this, member](const Request& request) { return (this->*member)(request); });
    };
    server.handle("GET", "/", text(std::string(dashboard_html()), "text/html; charset=utf-8"));
    server.handle("GET", "/metrics", [this](const Request&) { return Response{.body = metrics_text(), .content_type = kMetricsType}; });
    server.handle("GET", "/metrics/summary", [this](const Request&) { return Response{.body = summary(), .content_type = kMetricsType}; });
    server.handle("GET", "/role", text("leader"));
    server.handle("GET", "/ha_status", text("serving"));
    add("GET", "/health", &AdminService::health);
    add("GET", "/leader", &AdminService::leader);
    add("GET", "/kv_events/status", &AdminService::kv_events);
    add("POST", "/api/v1/remove_all", &AdminService::remove_all);
    add("GET", "/query_key", &AdminService::query_key);
    add("GET", "/batch_query_keys", &AdminService::batch_query_keys);
    add("GET", "/get_all_keys", &AdminService::all_keys);
    add("GET", "/get_all_segments", &AdminService::all_segments);
    add("GET", "/query_segment", &AdminService::query_segment);
    add("GET", "/get_segments_detail", &AdminService::segments_detail);
    add("GET", "/api/v1/segments/status", &AdminService::segment_status);
    add("GET", "/api/v1/overview", &AdminService::overview);
    add("POST", "/api/v1/drain_jobs", &AdminService::post_drain);
    add("GET", "/api/v1/drain_jobs/query", &AdminService::get_drain);
    add("POST", "/api/v1/drain_jobs/cancel", &AdminService::post_cancel);
    add("GET", "/api/v1/tenant_quotas", &AdminService::get_quotas);
    add("PUT", "/api/v1/tenant_quotas", &AdminService::put_quota);
    add("DELETE", "/api/v1/tenant_quotas", &AdminService::delete_quota);
}

std::string AdminService::metrics_text() const { return metrics_.registry().to_prometheus_text() + state_metrics(master_); }
std::string AdminService::summary() const { return state_summary(master_, metrics_); }

net::HttpResponse AdminService::health(const Request&) const {
    return json_answer({{"status", "ok"},
                        {"role", "leader"},
                        {"ha_state", "serving"},
                        {"service_ready", true},
                        {"leader_address", options_.address},
                        {"view_version", nullptr}});
}

net::HttpResponse AdminService::leader(const Request&) const {
    return json_answer({{"present", true}, {"leader_address", options_.address}, {"view_version", nullptr}});
}

net::HttpResponse AdminService::kv_events(const Request&) const {
    return json_answer(
        {{"enabled", false}, {"published_batches", 0}, {"published_events", 0}, {"dropped_events", 0}, {"skipped_unparsed_keys", 0}});
}

net::HttpResponse AdminService::remove_all(const Request& request) {
    const std::string* wish = request.parameter("force");
    const auto force = wish == nullptr || wish->empty() ? Result<bool>(false) : parse_switch(*wish);
    if (!force) return error_answer(StoreCode::kInvalidParams, "force must be true or false");
    const std::string* tenant = request.parameter("tenant_id");
    Removal::Wish wanted{.force = *force};
    if (tenant != nullptr) wanted.tenant = *tenant;
    Removal removal = begin_removal(master_, std::move(wanted));
    const uint64_t removed = remove_in_parts(master_, removal, [] { return false; }).value_or(0);
    options_.settle();
    metrics_.call(CountedCall::kRemoveAll, true);
    return json_answer({{"success", true}, {"removed_count", removed}});
}

}  // namespace mooncake::store
