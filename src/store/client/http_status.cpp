// SPDX-License-Identifier: Apache-2.0
#include "store/client/http_status.h"

namespace mooncake::store {

namespace {

constexpr const char* kMetricsType = "text/plain; version=0.0.4; charset=utf-8";

std::string latency_line(std::string_view name, const metrics::Histogram& histogram) {
    const auto seen = histogram.snapshot();
    return format_text("{}: {} calls, p50 {} us, p99 {} us\n", name, seen.count, seen.quantile(0.5) / 1000, seen.quantile(0.99) / 1000);
}

}  // namespace

std::string client_summary(const ClientMetrics& counters) {
    return format_text("read {} bytes, wrote {} bytes; leases: {} hits, {} misses; {} checksum failures, {} replica failures\n",
                       counters.read_bytes.value(), counters.write_bytes.value(), counters.lease_hits.value(),
                       counters.lease_misses.value(), counters.checksum_failures.value(), counters.replica_failures.value()) +
           latency_line("get", counters.get_latency) + latency_line("put", counters.put_latency) +
           latency_line("batch get", counters.batch_get_latency) + latency_line("batch put", counters.batch_put_latency);
}

Result<std::unique_ptr<net::HttpServer>> serve_status(StatusSources sources, uint16_t port) {
    MC_ASSIGN_OR_RETURN(auto server, net::HttpServer::create({.port = port}));
    using Request = net::HttpServerRequest;
    server->handle("GET", "/metrics", [metrics = std::move(sources.metrics)](const Request&) {
        return net::HttpResponse{.body = metrics(), .content_type = kMetricsType};
    });
    server->handle("GET", "/metrics/summary", [counters = sources.counters](const Request&) {
        return net::HttpResponse{.body = client_summary(*counters), .content_type = kMetricsType};
    });
    server->handle("GET", "/health", [healthy = std::move(sources.healthy)](const Request&) {
        const bool well = healthy();
        return net::HttpResponse{.status = well ? 200 : 503,
                                 .body = well ? R"({"status":"healthy","code":0})" : R"({"status":"master_unreachable","code":2})",
                                 .content_type = "application/json; charset=utf-8"};
    });
    server->start();
    return server;
}

}  // namespace mooncake::store
