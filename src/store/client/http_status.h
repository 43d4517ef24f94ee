// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "base/error.h"
#include "net/http_server.h"
#include "store/client/client_metrics.h"

namespace mooncake::store {

/// What a client's HTTP port shows: /metrics, /metrics/summary and /health.
struct StatusSources {
    std::function<std::string()> metrics;  // as Prometheus text
    const ClientMetrics* counters = nullptr;
    std::function<bool()> healthy;  // the master answered lately
};
/// Serves until it is stopped or destroyed; the sources must live as long.
Result<std::unique_ptr<net::HttpServer>> serve_status(StatusSources sources, uint16_t port);

/// The counters for people, in a few lines.
std::string client_summary(const ClientMetrics& counters);

}  // namespace mooncake::store
