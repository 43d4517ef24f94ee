// SPDX-License-Identifier: Apache-2.0
#include "apps/common/flags_client.h"

namespace mooncake::store {

void add_client_flags(FlagSet& set, ClientFlags& f) {
    set.add(
        {.name = "host", .target = &f.host, .help = "address that others reach this node at, or address:port; 0.0.0.0: found by itself"});
    set.add({.name = "bind_address",
             .target = &f.bind_address,
             .help = "address its ports listen on; empty: all, or loopback alone where --host is a loopback address"});
    set.add({.name = "port",
             .target = &f.port,
             .help = "of thin clients: processes of this host that share memory with this one (setup_dummy); a name, nothing listens "
                     "there; 0: none",
             .max = 65535});
    set.add({.name = "metadata_server", .target = &f.metadata_server, .help = "where engines find each other, or P2PHANDSHAKE"});
    set.add({.name = "master_server_address", .target = &f.master_server_address, .help = "host:port of mooncake_master"});
    set.add({.name = "protocol", .target = &f.protocol, .help = "how data moves"});
    set.add({.name = "device_names", .target = &f.device_names, .help = "only these NICs, separated by commas"});
    set.add({.name = "global_segment_size", .target = &f.global_segment_size, .help = "memory lent to the pool"});
    set.add({.name = "local_buffer_size", .target = &f.local_buffer_size, .help = "memory to stage values in"});
    set.add(
        {.name = "threads", .target = &f.threads, .help = "calls of thin clients carried out at a time, at most", .min = 1, .max = 1024});
    set.add({.name = "tenant_id", .target = &f.tenant_id, .help = "whose values it handles"});
    set.add({.name = "enable_offload", .target = &f.enable_offload, .help = "keep values on an SSD as well"});
    set.add({.name = "offload_path",
             .target = &f.offload_path,
             .help = "directory for that, absolute and existing; empty: MOONCAKE_OFFLOAD_FILE_STORAGE_PATH, or /data/file_storage"});
    set.add({.name = "warm_dir",
             .target = &f.warm_dir,
             .help = "directory on a tmpfs for the memory that is lent, so that it outlives this process; made if missing; empty: "
                     "MC_STORE_WARM_DIR"});
    set.add(
        {.name = "warm_stop", .target = &f.warm_stop, .help = "what an orderly end does with it: remove, or keep for the next process"});
    set.add({.name = "warm_clean",
             .target = &f.warm_clean,
             .help = "removes what a process that is gone has left in this directory, and ends"});
    set.add(
        {.name = "start_offload_rpc_server", .target = set.spare(true), .help = "accepted, means nothing: values there are always served"});
    set.add({.name = "enable_http_server", .target = &f.enable_http_server, .help = "serve /metrics, /metrics/summary and /health"});
    set.add({.name = "http_port", .target = &f.http_port, .help = "port for that", .min = 1, .max = 65535});
    set.add({.name = "use_mmap_arena_allocator", .target = set.spare(false), .help = "accepted, means nothing"});
    set.add({.name = "mmap_arena_pool_size", .target = set.spare(std::string_view("8 GB")), .help = "accepted, means nothing"});
    add_log_flags(set, f.log);
}

Result<ClientFlags> parse_client_flags(std::span<const std::string> arguments) {
    ClientFlags flags;
    FlagSet set;
    add_client_flags(set, flags);
    MC_ASSIGN_OR_RETURN(const auto assignments, set.split(arguments));
    for (const auto& [name, text] : assignments) {
        MC_RETURN_IF_ERROR(set.set(name, text));
        flags.port_given = flags.port_given || name == "port";
    }
    std::string names;
    for (const std::string_view name : set.set_in_vain()) names += format_text("{}--{}", names.empty() ? "" : ", ", name);
    if (!names.empty()) flags.warnings.push_back(format_text("not built yet, without effect: {}", names));
    return flags;
}

std::string client_help() {
    ClientFlags flags;
    FlagSet set;
    add_client_flags(set, flags);
    return "mooncake_client: lends the memory of this host to the pool\n\nFlags (-x=y, --x y, --nox):\n" + set.help();
}

}  // namespace mooncake::store
