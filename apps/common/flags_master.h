// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/common/flags_log.h"
#include "apps/common/flags_set.h"
#include "base/error.h"
#include "base/options.h"
#include "base/time.h"
#include "store/master/options.h"

namespace mooncake::store {

/// What mooncake_master can be told and does something with, with its defaults; docs/guide/master.md explains each. Numbers are
/// checked by the parser.
struct MasterFlags {
    std::string config_path;
    // servers
    int64_t port = 50051, rpc_port = 0;  // 0: port; port 0: any free one
    int64_t max_threads = 16, rpc_thread_num = 0;
    std::string bind_address;  // where given: of all three servers
    std::string rpc_address = "0.0.0.0", rpc_interface;
    bool enable_metric_reporting = true;
    int64_t metrics_port = 9003;
    std::string metrics_host = "0.0.0.0";
    bool enable_http_metadata_server = false;
    int64_t http_metadata_server_port = 8080;
    std::string http_metadata_server_host = "0.0.0.0";
    bool enable_metadata_cleanup_on_timeout = false;
    // values and clients
    Duration default_kv_lease_ttl = 10s;
    Duration default_kv_soft_pin_ttl = 30min, max_kv_soft_pin_ttl = 24h;
    bool allow_evict_soft_pinned_objects = true;
    double eviction_ratio = 0.05, eviction_high_watermark_ratio = 0.90;
    bool eviction_high_watermark_given = false;
    Duration client_ttl = 10s;
    Duration put_start_discard_timeout = 30s, put_start_release_timeout = 600s;
    std::string memory_allocator = "offset", allocation_strategy = "random";
    // tenants
    bool enable_multi_tenants = false;
    std::string tenant_quota_connector_type = "file", tenant_quota_connector_uri;
    // tasks
    int64_t max_total_finished_tasks = 10000, max_total_pending_tasks = 10000, max_total_processing_tasks = 10000;
    Duration pending_task_timeout = 300s, processing_task_timeout = 300s;
    // values on disks
    bool enable_offload = false, offload_on_evict = false, offload_force_evict = false;
    int64_t offloading_queue_limit = 50000;
    bool promotion_on_hit = false;
    int64_t promotion_admission_threshold = 2, promotion_queue_limit = 50000;
    // parts that are not built yet, as far as they make the master refuse to start
    bool enable_ha = false, enable_oplog = false, enable_kv_events = false;
    std::string ha_backend_type = "etcd", ha_backend_connstring, etcd_endpoints;
    std::string kv_events_bind_endpoint, kv_events_backend_id;
    LogFlags log;
    // from the environment
    std::string metadata_server;        // whose entries of dead clients are deleted; empty: none
    std::string metadata_cluster_id;    // MC_METADATA_CLUSTER_ID
    std::vector<std::string> warnings;  // to be logged once the log is set up
};

/// What parsing needs of the outside.
struct MasterFlagSources {
    std::function<Result<std::string>(const std::string& path)> read_file;
    Environment environment;
};

/// Adds all flags of the master, writing to `flags`.
void add_master_flags(FlagSet& set, MasterFlags& flags);
/// Command line (without the program's name) over configuration file over defaults. kInvalidArgument: an unknown flag, a bad value, a combination
/// that cannot be served; the text is for the user. Pure but for what `sources` reads.
Result<MasterFlags> parse_master_flags(std::span<const std::string> arguments, const MasterFlagSources& sources);
/// All flags with explanations.
std::string master_help();

MasterOptions master_options(const MasterFlags& flags);
/// The port to listen on; 0: any free one.
uint16_t master_port(const MasterFlags& flags);
int master_threads(const MasterFlags& flags, unsigned cores);

}  // namespace mooncake::store
