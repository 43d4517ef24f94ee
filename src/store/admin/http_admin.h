// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/thread_annotations.h"
#include "base/time.h"
#include "net/http_server.h"
#include "store/protocol/tasks.h"
#include "store/service/locked_master.h"
#include "store/service/master_metrics.h"

namespace mooncake::store {

struct AdminOptions {
    std::string address;                    // host:port of the master, for /leader
    std::string quota_file{};               // where quotas are kept; empty: only in memory
    std::function<void()> changed = [] {};  // called when there may be something to do for the master's jobs
    std::function<void()> settle = [] {};   // returns when clients know of what was changed, or do not answer
};

/// Everything on the master's HTTP port: metrics, dashboard, what there is and where, drain jobs, quotas (docs/guide/master.md). Borrows
/// master and metrics. Thread-safe; must outlive the server it is attached to.
class AdminService {
public:
    AdminService(LockedMaster& master, MasterMetrics& metrics, AdminOptions options);

    /// Adds the handlers; before server.start().
    void attach(net::HttpServer& server);
    /// Takes over what the quota file says, if there is one. Once, before anything is served.
    Result<> load_quota_file();

    /// Everything that is counted or can be seen, as Prometheus text.
    std::string metrics_text() const;
    /// The same for people, in a few lines.
    std::string summary() const;

private:
    using Request = net::HttpServerRequest;
    using Response = net::HttpResponse;

    // http_admin.cpp
    Response health(const Request& request) const;
    Response leader(const Request& request) const;
    Response kv_events(const Request& request) const;
    Response remove_all(const Request& request);
    // http_objects.cpp
    Response query_key(const Request& request);
    Response batch_query_keys(const Request& request) const;
    Response all_keys(const Request& request) const;
    // http_segments.cpp
    Response all_segments(const Request& request) const;
    Response query_segment(const Request& request) const;
    Response segments_detail(const Request& request) const;
    Response segment_status(const Request& request) const;
    Response overview(const Request& request) const;
    // http_jobs.cpp
    Response post_drain(const Request& request);
    Response get_drain(const Request& request) const;
    Response post_cancel(const Request& request);
    // http_tenants.cpp
    Response get_quotas(const Request& request) const;
    Response put_quota(const Request& request);
    Response delete_quota(const Request& request);
    Response change_quota(const std::string& name, std::optional<uint64_t> bytes) MC_EXCLUDES(quota_mutex_);
    std::optional<TenantQuota> find_quota(std::string_view name) const;
    Result<> save_quota_file() const;

    LockedMaster& master_;
    MasterMetrics& metrics_;
    const AdminOptions options_;
    const Time started_ = Clock::now();
    Mutex quota_mutex_;  // held while quotas are changed, so that file and state agree
};

}  // namespace mooncake::store
