// SPDX-License-Identifier: Apache-2.0
#include "apps/common/flags_master.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/common/config_file.h"

namespace mooncake::store {

namespace {

constexpr double kPortMax = 65535, kCountMax = 1e9;
constexpr std::string_view kRatio = "fraction of the pool";

void add_server_flags(FlagSet& set, MasterFlags& f) {
    set.add({.name = "config_path",
             .target = &f.config_path,
             .help = "JSON or YAML file with values for these flags; the command line goes before it"});
    set.add({.name = "port", .target = &f.port, .help = "RPC port; 0: any free one, see the log", .max = kPortMax});
    set.add({.name = "rpc_port", .target = &f.rpc_port, .help = "goes before --port unless 0", .max = kPortMax});
    set.add(
        {.name = "max_threads", .target = &f.max_threads, .help = "most RPC threads when --rpc_thread_num is 0", .min = 1, .max = 1024});
    set.add({.name = "rpc_thread_num",
             .target = &f.rpc_thread_num,
             .help = "RPC threads; 0: one per core, at most --max_threads",
             .max = 1024});
    set.add({.name = "bind_address",
             .target = &f.bind_address,
             .help = "address that everything listens on; goes before --rpc_address, --metrics_host and --http_metadata_server_host"});
    set.add({.name = "rpc_address", .target = &f.rpc_address, .help = "address to listen on for RPC"});
    set.add(
        {.name = "rpc_interface", .target = &f.rpc_interface, .help = "network interface whose IPv4 address goes before --rpc_address"});
    set.add({.name = "rpc_conn_timeout_seconds",
             .target = set.spare(int64_t{0}),
             .help = "end of unused connections; 0: never",
             .built = false});
    set.add({.name = "rpc_enable_tcp_no_delay", .target = set.spare(true), .help = "always so", .built = false});
    set.add({.name = "enable_metric_reporting", .target = &f.enable_metric_reporting, .help = "log a summary every 10 s"});
    set.add({.name = "metrics_port",
             .target = &f.metrics_port,
             .help = "port of administration, metrics and dashboard; 0: any free one",
             .max = kPortMax});
    set.add({.name = "metrics_host", .target = &f.metrics_host, .help = "address for --metrics_port"});
    set.add(
        {.name = "enable_http_metadata_server", .target = &f.enable_http_metadata_server, .help = "serve the engines' metadata as well"});
    set.add({.name = "http_metadata_server_port",
             .target = &f.http_metadata_server_port,
             .help = "its port; 0: any free one",
             .max = kPortMax});
    set.add({.name = "http_metadata_server_host", .target = &f.http_metadata_server_host, .help = "its address"});
    set.add({.name = "enable_metadata_cleanup_on_timeout",
             .target = &f.enable_metadata_cleanup_on_timeout,
             .help = "delete the metadata of clients that died"});
}

void add_object_flags(FlagSet& set, MasterFlags& f) {
    set.add({.name = "default_kv_lease_ttl",
             .target = Milliseconds{&f.default_kv_lease_ttl},
             .help = "how long a read keeps its value in place"});
    set.add(
        {.name = "default_kv_soft_pin_ttl", .target = Milliseconds{&f.default_kv_soft_pin_ttl}, .help = "of soft pins without their own"});
    set.add({.name = "max_kv_soft_pin_ttl", .target = Milliseconds{&f.max_kv_soft_pin_ttl}, .help = "longest soft pin"});
    set.add({.name = "allow_evict_soft_pinned_objects", .target = &f.allow_evict_soft_pinned_objects, .help = "when nothing else can go"});
    set.add({.name = "eviction_ratio",
             .target = &f.eviction_ratio,
             .help = "freed below the watermark at once, as a fraction of the pool",
             .max = 1});
    set.add({.name = "eviction_high_watermark_ratio",
             .target = &f.eviction_high_watermark_ratio,
             .help = "if set: use above which memory is freed ahead of need; else puts make room by themselves",
             .max = 1,
             .given = &f.eviction_high_watermark_given});
    set.add({.name = "client_ttl",
             .target = Seconds{&f.client_ttl},
             .help = "silence after which a client is dead",
             .min = 0.1,
             .name_in_files = "client_live_ttl_sec"});
    set.add({.name = "put_start_discard_timeout_sec",
             .target = Seconds{&f.put_start_discard_timeout},
             .help = "age at which an unfinished write no longer keeps others from its key"});
    set.add({.name = "put_start_release_timeout_sec",
             .target = Seconds{&f.put_start_release_timeout},
             .help = "age at which its memory is used again"});
    set.add({.name = "memory_allocator",
             .target = &f.memory_allocator,
             .help = "there is one, which takes this name",
             .choices = {"offset", "cachelib"}});
    set.add({.name = "allocation_strategy",
             .target = &f.allocation_strategy,
             .help = "where values go: random, free_ratio_first, local_first",
             .choices = {"random", "free_ratio_first", "ssd_free_ratio_first", "local_first", "cxl"}});
    set.add({.name = "enable_multi_tenants", .target = &f.enable_multi_tenants, .help = "tell tenants apart and limit them"});
    set.add({.name = "tenant_quota_connector_type",
             .target = &f.tenant_quota_connector_type,
             .help = "where quotas are kept",
             .choices = {"file", "etcd"}});
    set.add({.name = "tenant_quota_connector_uri",
             .target = &f.tenant_quota_connector_uri,
             .help = "path of that file; empty: only in memory"});
    set.add({.name = "max_total_finished_tasks",
             .target = &f.max_total_finished_tasks,
             .help = "remembered copies and moves",
             .max = kCountMax});
    set.add({.name = "max_total_pending_tasks",
             .target = &f.max_total_pending_tasks,
             .help = "waiting ones; more are refused",
             .max = kCountMax});
    set.add({.name = "max_total_processing_tasks", .target = &f.max_total_processing_tasks, .help = "running ones", .max = kCountMax});
    set.add({.name = "pending_task_timeout_sec", .target = Seconds{&f.pending_task_timeout}, .help = "0: none"});
    set.add({.name = "processing_task_timeout_sec", .target = Seconds{&f.processing_task_timeout}, .help = "0: none"});
    set.add({.name = "max_retry_attempts",
             .target = set.spare(int64_t{10}),
             .help = "of a copy that finds no memory; retried by itself",
             .built = false,
             .max = 1000});
}

void add_disk_flags(FlagSet& set, MasterFlags& f) {
    set.add({.name = "enable_offload", .target = &f.enable_offload, .help = "copy values to the SSDs of their nodes when they are put"});
    set.add({.name = "offload_on_evict",
             .target = &f.offload_on_evict,
             .help = "copy them there only before they would have to leave memory (offloading is on with this, too)"});
    set.add({.name = "offload_force_evict",
             .target = &f.offload_force_evict,
             .help = "rather lose what no SSD has yet than refuse a put until it has"});
    set.add({.name = "offloading_queue_limit",
             .target = &f.offloading_queue_limit,
             .help = "values waiting for the SSD of one node",
             .min = 1,
             .max = 1e8});
    set.add({.name = "promotion_on_hit", .target = &f.promotion_on_hit, .help = "bring values back to memory that are read from SSD"});
    set.add({.name = "promotion_admission_threshold",
             .target = &f.promotion_admission_threshold,
             .help = "at the how manyth read",
             .max = kCountMax});
    set.add({.name = "promotion_queue_limit",
             .target = &f.promotion_queue_limit,
             .help = "values waiting for that, per node",
             .max = kCountMax});
}

void add_tier_flags(FlagSet& set) {
    const auto number = [&](std::string_view name, int64_t value, double min, double max, std::string_view help) {
        set.add({.name = name, .target = set.spare(value), .help = help, .built = false, .min = min, .max = max});
    };
    const auto ratio = [&](std::string_view name, double value, std::string_view help) {
        set.add({.name = name, .target = set.spare(value), .help = help, .built = false, .max = 1});
    };
    const auto toggle = [&](std::string_view name, bool value, std::string_view help) {
        set.add({.name = name, .target = set.spare(value), .help = help, .built = false});
    };
    const auto text = [&](std::string_view name, std::string_view value, std::string_view help) {
        set.add({.name = name, .target = set.spare(value), .help = help, .built = false});
    };
    ratio("nof_eviction_ratio", 0.05, kRatio);
    ratio("nof_eviction_high_watermark_ratio", 0.90, kRatio);
    ratio("offload_cap_ratio", 0.5, "share of the queue for one run of eviction: all of it");
    number("promotion_max_per_heartbeat", 1, 0, kCountMax, "at once: as many as the node takes");
    set.add({.name = "dynamic_replication_mode",
             .target = set.spare(std::string_view("off")),
             .help = "more replicas for hot values",
             .built = false,
             .choices = {"off", "observe", "enforce"}});
    number("dynamic_replication_heat_window_seconds", 10, 0, kCountMax, "window in which reads are counted");
    set.add({.name = "dynamic_replication_admission_qps_threshold",
             .target = set.spare(0.8),
             .help = "reads per second of a hot value",
             .built = false});
    number("dynamic_replication_max_memory_replicas", 2, 0, kCountMax, "of one value");
    text("root_fs_dir", "", "shared file system for values");
    number("global_file_segment_size", std::numeric_limits<int64_t>::max(), 0, 1e19, "bytes there");
    set.add({.name = "use_mmap_arena_allocator", .target = set.spare(false), .help = "accepted, means nothing"});
    set.add({.name = "mmap_arena_pool_size", .target = set.spare(std::string_view("8 GB")), .help = "accepted, means nothing"});
    set.add({.name = "cluster_id",
             .target = set.spare(std::string_view("mooncake_cluster")),
             .help = "name of this cluster there and in a directory"});
    toggle("enable_disk_eviction", true, "evict values there");
    number("quota_bytes", 0, 0, 1e19, "limit there; 0: nine tenths of it");
    toggle("enable_cxl", false, "lend memory of a CXL device");
    text("cxl_path", "/dev/dax0.0", "that device");
    number("cxl_size", 8589934592, 0, 1e19, "its bytes");
    number("nof_heartbeat_interval_sec", 10, 0, kCountMax, "between probes of NVMe-oF targets");
    number("nof_heartbeat_probe_timeout_ms", 1000, 0, kCountMax, "of one probe");
    number("nof_heartbeat_failures_threshold", 3, 0, kCountMax, "before such a target is given up");
}

void add_availability_flags(FlagSet& set, MasterFlags& f) {
    const auto unbuilt = [&](std::string_view name, FlagTarget target, std::string_view help) {
        set.add({.name = name, .target = target, .help = help, .built = false});
    };
    unbuilt("enable_ha", &f.enable_ha, "several masters of which one serves");
    set.add({.name = "ha_backend_type",
             .target = &f.ha_backend_type,
             .help = "where they elect it",
             .built = false,
             .choices = {"etcd", "redis", "k8s"}});
    unbuilt("ha_backend_connstring", &f.ha_backend_connstring, "address of that");
    unbuilt("etcd_endpoints", &f.etcd_endpoints, "the same, for etcd");
    unbuilt("enable_oplog", &f.enable_oplog, "followers apply what the serving one does");
    unbuilt("oplog_poll_interval_ms", set.spare(int64_t{1000}), "of followers");
    unbuilt("oplog_batch_max_entries", set.spare(int64_t{1024}), "written at once");
    unbuilt("batch_oplog_retry_timeout_sec", set.spare(int64_t{180}), "until a write of them is given up");
    unbuilt("pod_name", set.spare(std::string_view()), "of this master, in Kubernetes");
    unbuilt("pod_namespace", set.spare(std::string_view()), "of that pod");
    unbuilt("enable_snapshot", set.spare(false), "write snapshots of the state");
    unbuilt("enable_snapshot_restore", set.spare(false), "begin with the latest one; nodes report what they hold in any case");
    unbuilt("snapshot_interval_seconds", set.spare(int64_t{600}), "between them");
    unbuilt("snapshot_child_timeout_seconds", set.spare(int64_t{300}), "to write one");
    unbuilt("snapshot_retention_count", set.spare(int64_t{2}), "kept");
    for (const std::string_view name : {"snapshot_object_store_type", "snapshot_payload_store_type", "snapshot_payload_backend_type"})
        set.add({.name = name,
                 .target = set.spare(std::string_view()),
                 .help = "where snapshots go",
                 .built = false,
                 .choices = {"", "local", "s3"}});
    for (const std::string_view name : {"snapshot_catalog_store_type", "snapshot_catalog_backend_type"})
        set.add({.name = name,
                 .target = set.spare(std::string_view()),
                 .help = "where they are listed",
                 .built = false,
                 .choices = {"", "embedded", "redis"}});
    for (const std::string_view name : {"snapshot_catalog_store_connstring", "snapshot_catalog_backend_connstring"})
        unbuilt(name, set.spare(std::string_view()), "address of that");
    unbuilt("snapshot_backup_dir", set.spare(std::string_view()), "folder for local ones");
    unbuilt("enable_kv_events", &f.enable_kv_events, "publish which values come and go");
    unbuilt("kv_events_bind_endpoint", &f.kv_events_bind_endpoint, "address to publish at");
    unbuilt("kv_events_backend_id", &f.kv_events_backend_id, "name of this pool in the events");
    unbuilt("kv_events_emit_legacy_compat", set.spare(true), "with the older fields as well");
    unbuilt("kv_events_emit_object_key", set.spare(true), "with the keys");
    unbuilt("kv_events_queue_capacity", set.spare(int64_t{65536}), "waiting; the oldest is dropped for another; 0: no limit");
    for (const std::string_view name : {"kv_events_model_name", "kv_events_additional_salt", "kv_events_lora_name"})
        set.add({.name = name, .target = set.spare(std::string_view()), .help = "accepted, means nothing"});
    set.add({.name = "kv_events_tenant_id", .target = set.spare(std::string_view("default")), .help = "accepted, means nothing"});
    for (const std::string_view name : {"kv_events_block_size", "kv_events_dp_rank"})
        set.add({.name = name, .target = set.spare(int64_t{0}), .help = "accepted, means nothing", .min = -1});
}

Result<> read_config(FlagSet& set, const std::string& path, const MasterFlagSources& sources, std::vector<std::string>& warnings) {
    auto text = sources.read_file(path);
    if (!text) return Unexpected(std::move(text).error().with_context(format_text("--config_path {}", path)));
    auto entries = parse_config(*text);
    if (!entries) return fail(Code::kInvalidArgument, "--config_path {}: {}", path, entries.error().message());
    for (const auto& [name, value] : *entries) {
        if (name == "config_path") continue;
        auto done = set.set_from_file(name, value);
        if (done) continue;
        if (done.error().code() == Code::kNotFound) warnings.push_back(format_text("{}: {}", path, done.error().message()));
        else return fail(Code::kInvalidArgument, "{}: {}", path, done.error().message());
    }
    return {};
}

Result<> check_combinations(const MasterFlags& flags) {
    if (flags.enable_ha && flags.ha_backend_connstring.empty() && flags.etcd_endpoints.empty())
        return fail(Code::kInvalidArgument, "--enable_ha needs --ha_backend_connstring (or --etcd_endpoints)");
    if (flags.enable_oplog && !flags.enable_ha) return fail(Code::kInvalidArgument, "--enable_oplog needs --enable_ha");
    if (flags.enable_oplog && flags.ha_backend_type != "etcd")
        return fail(Code::kInvalidArgument, "--enable_oplog needs --ha_backend_type=etcd, not {}", flags.ha_backend_type);
    if (flags.enable_kv_events && (flags.kv_events_bind_endpoint.empty() || flags.kv_events_backend_id.empty()))
        return fail(Code::kInvalidArgument, "--enable_kv_events needs --kv_events_bind_endpoint and --kv_events_backend_id");
    if (flags.default_kv_soft_pin_ttl > flags.max_kv_soft_pin_ttl)
        return fail(Code::kInvalidArgument, "--default_kv_soft_pin_ttl is longer than --max_kv_soft_pin_ttl");
    if (flags.put_start_discard_timeout > flags.put_start_release_timeout)
        return fail(Code::kInvalidArgument, "--put_start_discard_timeout_sec is longer than --put_start_release_timeout_sec");
    if (flags.enable_multi_tenants && flags.tenant_quota_connector_type != "file")
        return fail(Code::kInvalidArgument, "--tenant_quota_connector_type={} is not built; use file", flags.tenant_quota_connector_type);
    return {};
}

void warn_of_what_is_not_built(const FlagSet& set, MasterFlags& flags) {
    std::string names;
    const auto name = [&](std::string_view what) { names += format_text("{}--{}", names.empty() ? "" : ", ", what); };
    for (const std::string_view flag : set.set_in_vain()) name(flag);
    if (flags.memory_allocator != "offset") name("memory_allocator=" + flags.memory_allocator);
    if (flags.allocation_strategy == "ssd_free_ratio_first" || flags.allocation_strategy == "cxl")
        name("allocation_strategy=" + flags.allocation_strategy);
    if (!names.empty()) flags.warnings.push_back(format_text("not built yet, without effect: {}", names));
}

/// Where the engines of this cluster keep their metadata, if that is not this master itself.
std::string find_metadata_server(const MasterFlagSources& sources) {
    if (const auto address = sources.environment("MOONCAKE_TE_META_DATA_SERVER")) return *address;
    const auto path = sources.environment("MOONCAKE_CONFIG_PATH");
    if (!path || path->empty()) return {};
    const auto text = sources.read_file(*path);
    if (!text) return {};
    const auto json = nlohmann::json::parse(*text, nullptr, false);
    const auto found = json.is_object() ? json.find("metadata_server") : json.end();
    return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
}

}  // namespace

void add_master_flags(FlagSet& set, MasterFlags& flags) {
    add_server_flags(set, flags);
    add_object_flags(set, flags);
    add_disk_flags(set, flags);
    add_tier_flags(set);
    add_availability_flags(set, flags);
    add_log_flags(set, flags.log);
}

Result<MasterFlags> parse_master_flags(std::span<const std::string> arguments, const MasterFlagSources& sources) {
    MasterFlags flags;
    FlagSet set;
    add_master_flags(set, flags);
    MC_ASSIGN_OR_RETURN(const auto assignments, set.split(arguments));
    for (const auto& [name, text] : assignments)
        if (name == "config_path" || name == "help" || name == "version") MC_RETURN_IF_ERROR(set.set(name, text));
    if (flags.log.help || flags.log.version) return flags;
    if (!flags.config_path.empty()) MC_RETURN_IF_ERROR(read_config(set, flags.config_path, sources, flags.warnings));
    const auto given = [&](std::string_view flag) {
        return std::any_of(assignments.begin(), assignments.end(), [&](const auto& assignment) { return assignment.first == flag; });
    };
    if (given("port") && !given("rpc_port")) flags.rpc_port = 0;  // the file's does not go before the command line
    for (const auto& [name, text] : assignments) MC_RETURN_IF_ERROR(set.set(name, text));
    MC_RETURN_IF_ERROR(check_combinations(flags));
    warn_of_what_is_not_built(set, flags);
    flags.metadata_cluster_id = sources.environment("MC_METADATA_CLUSTER_ID").value_or("");
    if (flags.enable_metadata_cleanup_on_timeout && !flags.enable_http_metadata_server) {
        flags.metadata_server = find_metadata_server(sources);
        if (flags.metadata_server.empty() || flags.metadata_server == "P2PHANDSHAKE") {
            flags.metadata_server.clear();
            flags.warnings.emplace_back(
                "--enable_metadata_cleanup_on_timeout: no metadata server is known (--enable_http_metadata_server, "
                "MOONCAKE_TE_META_DATA_SERVER), so there is nothing to clean");
        }
    }
    return flags;
}

std::string master_help() {
    MasterFlags flags;
    FlagSet set;
    add_master_flags(set, flags);
    return "mooncake_master: knows which values the pool holds and where\n\nFlags (-x=y, --x y, --nox):\n" + set.help();
}

MasterOptions master_options(const MasterFlags& flags) {
    MasterOptions options;
    options.lease_ttl = flags.default_kv_lease_ttl;
    options.soft_pin_ttl = flags.default_kv_soft_pin_ttl;
    options.soft_pin_ttl_max = flags.max_kv_soft_pin_ttl;
    options.evict_soft_pinned = flags.allow_evict_soft_pinned_objects;
    options.eviction_ratio = flags.eviction_ratio;
    options.high_watermark = flags.eviction_high_watermark_ratio;
    // Puts make room by themselves; freeing ahead of need only costs hits, so it is left to those who ask for a mark of their own.
    options.evict_ahead = flags.eviction_high_watermark_given;
    options.client_ttl = flags.client_ttl;
    options.put_discard_timeout = flags.put_start_discard_timeout;
    options.put_release_timeout = flags.put_start_release_timeout;
    if (flags.allocation_strategy == "free_ratio_first" || flags.allocation_strategy == "ssd_free_ratio_first")
        options.placement = PlacementStrategy::kFreeRatioFirst;
    if (flags.allocation_strategy == "local_first") options.placement = PlacementStrategy::kLocalFirst;
    options.tenants = flags.enable_multi_tenants;
    options.finished_tasks_max = static_cast<size_t>(flags.max_total_finished_tasks);
    options.pending_tasks_max = static_cast<size_t>(flags.max_total_pending_tasks);
    options.processing_tasks_max = static_cast<size_t>(flags.max_total_processing_tasks);
    options.pending_task_timeout = flags.pending_task_timeout;
    options.processing_task_timeout = flags.processing_task_timeout;
    options.offload = flags.enable_offload;
    options.offload_on_evict = flags.offload_on_evict;
    options.offload_force_evict = flags.offload_force_evict;
    options.offload_queue_max = static_cast<size_t>(flags.offloading_queue_limit);
    options.promote = flags.promotion_on_hit;
    options.promotion_threshold = static_cast<uint32_t>(std::clamp<int64_t>(flags.promotion_admission_threshold, 1, 255));
    options.promotion_queue_max = static_cast<size_t>(flags.promotion_queue_limit);
    return options;
}

uint16_t master_port(const MasterFlags& flags) { return static_cast<uint16_t>(flags.rpc_port != 0 ? flags.rpc_port : flags.port); }

int master_threads(const MasterFlags& flags, unsigned cores) {
    if (flags.rpc_thread_num != 0) return static_cast<int>(flags.rpc_thread_num);
    return static_cast<int>(std::min<int64_t>(flags.max_threads, std::max(cores, 1U)));
}

}  // namespace mooncake::store
