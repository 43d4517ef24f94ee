// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/options.h"
#include "base/time.h"
#include "store/node/disk_config.h"

namespace mooncake {
class Engine;
}

namespace mooncake::store {

/// What the environment can say about a client (docs/guide/store.md); load_store_options() reads it.
struct StoreOptions {
    int setup_tries = 20;                         // MC_STORE_CLIENT_SETUP_RETRIES
    uint16_t port_min = 12300, port_max = 14300;  // MC_STORE_CLIENT_MIN_PORT, MC_STORE_CLIENT_MAX_PORT
    bool huge_pages = false;                      // MC_STORE_USE_HUGEPAGE
    uint64_t huge_page_bytes = 2 << 20;           // MC_STORE_HUGEPAGE_SIZE: 2MB or 1GB
    bool early_pages = true;                      // MC_STORE_EARLY_PAGES: "0" leaves pages of segments to their first use
    std::string warm_dir;                         // MC_STORE_WARM_DIR: the segment outlives the process, there; empty: it does not
    bool warm_keep = false;                       // MC_STORE_WARM_STOP: "keep", also if it is stopped in order; or "remove"
    bool checksum = true;                         // MOONCAKE_STORE_CHECKSUM: "0" switches it off
    bool metrics = true;                          // MC_STORE_CLIENT_METRIC
    Duration metrics_interval = 0s;               // MC_STORE_CLIENT_METRIC_INTERVAL (s); 0: no log lines
    std::string cluster_id;                       // MC_STORE_CLUSTER_ID
    Duration rpc_timeout = 30s, rpc_connect_timeout = 30s;  // MC_RPC_TIMEOUT_MS, MC_RPC_CONNECT_TIMEOUT_MS
    Duration node_wait = 5s;                                // MC_BRIDGE_RECONNECT_WAIT_MS: of thin clients, for a node that is not there
    uint64_t shared_bytes_max = uint64_t{1} << 50;          // MC_BRIDGE_MEMORY_MAX: that one thin client may share with its node
    EngineOptions engine;
};
MC_EXPORT StoreOptions load_store_options(const Environment& environment);

struct StoreConfig {
    std::string local_hostname;  // "host": a free port is found; "host:port": that one
    std::string metadata_server = "P2PHANDSHAKE";
    uint64_t segment_bytes = 16 << 20;  // lent to the pool; 0: none
    uint64_t buffer_bytes = 16 << 20;   // of staging memory; 0: none
    std::string protocol = "tcp";
    std::vector<std::string> devices;
    std::string master = "127.0.0.1:50051";
    std::string tenant = "default";
    bool http_server = false;
    uint16_t http_port = 9300;
    DiskConfig disk;                 // where values are kept that memory has no room for; no path: nowhere (offload_options.h)
    std::shared_ptr<Engine> engine;  // used, and left open; empty: one is made
    StoreOptions options;
};

/// "keep" -> true, "remove" -> false; nothing for anything else.
MC_EXPORT std::optional<bool> parse_warm_stop(std::string_view text);
/// "16MB", "16 MB", "1gb", "4096" -> bytes; kInvalidArgument for anything else, "50%" included.
MC_EXPORT Result<uint64_t> parse_size(std::string_view text);

}  // namespace mooncake::store
