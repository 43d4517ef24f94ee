// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/format.h"
#include "base/log.h"
#include "base/time.h"

namespace mooncake {

/// What the fabric transport can be told (docs/guide/fabric.md). Zero, empty and nothing: as the provider's profile says.
struct FabricOptions {
    std::string provider;                 // MC_FABRIC_PROVIDER: libfabric's name, in place of those of the profile
    std::vector<std::string> nodes;       // MC_FABRIC_NODES: source addresses, one rail each, for providers without devices (tcp)
    std::string library;                  // MC_FABRIC_LIBRARY: path of libfabric
    std::string mr_style;                 // MC_FABRIC_MR_STYLE: auto, offset, basic
    uint64_t stripe_bytes = 0;            // MC_FABRIC_STRIPE
    int run = 4;                          // MC_FABRIC_RUN: fragments that a rail takes at a time
    std::optional<Duration> spin;         // MC_FABRIC_SPIN_US: polling before a rail's thread sleeps
    Duration stall_timeout = 0s;          // MC_FABRIC_STALL_MS: no completion for this long: the path is down
    Duration connect_timeout = 0s;        // MC_FABRIC_CONNECT_MS
    Duration idle_timeout = 0s;           // MC_FABRIC_IDLE_MS: a path that nobody uses is forgotten after this
    int attempts = 3;                     // MC_FABRIC_ATTEMPTS: of one fragment, over all its paths
    uint64_t page_budget = 0;             // MC_FABRIC_PAGE_BUDGET: page entries per NIC
    bool fallback = true;                 // MC_FABRIC_FALLBACK: tcp may carry what the fabric cannot
    uint32_t operations_max = 0;          // MC_MAX_WR: in flight per NIC
    int poll_threads = 1;                 // MC_EFA_CQ_THREADS: over all rails; 0 = one per rail
    bool near_nics_only = false;          // MC_EFA_NIC_SELECTION=local: device memory only with the nearest NICs
    int registrations_parallel = 0;       // MC_MAX_CONCURRENT_REG_MR
    uint64_t registration_bytes_max = 0;  // MC_MAX_MR_SIZE
};

/// Everything an engine can be told, with its defaults. Libraries take it as an argument and read no environment; only
/// load_options() (options.cpp) does, on behalf of the Python and C faces and the programs.
struct EngineOptions {
    // calls
    Duration transfer_timeout = 30s;  // MC_TRANSFER_TIMEOUT (s, at least 5), plus 1 ns per byte
    // which transport
    std::string protocol;                   // MOONCAKE_PROTOCOL overrides the argument of initialize()
    std::vector<std::string> transports;    // MC_TRANSPORTS: only these; empty = all; MC_FORCE_TCP = {"tcp"}
    bool require_network_device = false;    // MC_FORCE_HCA
    std::vector<std::string> device_allow;  // MC_TE_FILTERS, MC_MS_FILTERS
    std::vector<std::string> device_deny;   // MC_TE_FILTERS_EXCLUDE
    std::string topology_file;              // MC_CUSTOM_TOPO_JSON
    bool discover_topology = true;          // MC_MS_AUTO_DISC: which NICs are near which memory
    // names and ports
    std::string cluster_id;            // MC_METADATA_CLUSTER_ID
    std::string advertised_address;    // MC_TCP_BIND_ADDRESS: what peers dial, in directory modes
    std::string bind_address;          // MC_BIND_ADDRESS: where our ports listen; empty: see engine.h
    bool legacy_port_binding = false;  // MC_LEGACY_RPC_PORT_BINDING
    uint16_t port_min = 15000;         // MC_MIN_RPC_PORT
    uint16_t port_max = 17000;         // MC_MAX_RPC_PORT
    uint16_t handshake_port = 12001;   // MC_HANDSHAKE_PORT: names without a port, legacy binding only
    bool ipv6 = false;                 // MC_USE_IPV6
    // control plane
    int listen_backlog = 128;              // MC_HANDSHAKE_LISTEN_BACKLOG
    Duration connect_timeout = 5s;         // MC_HANDSHAKE_CONNECT_TIMEOUT (s)
    uint64_t message_bytes_max = 1 << 20;  // MC_HANDSHAKE_MAX_LENGTH (1-128 MiB)
    bool cache_descriptors = true;         // off by MC_DISABLE_METACACHE
    Duration refresh_interval = 0s;        // MC_TE_METADATA_REFRESH_INTERVAL_SECONDS; 0 = only when something fails
    // redis directory
    std::string redis_username, redis_password;  // MC_REDIS_USERNAME, MC_REDIS_PASSWORD
    int redis_database = 0;                      // MC_REDIS_DB_INDEX (0-255)
    // tcp transport
    int tcp_lanes = 4;          // MC_TCP_LANES_PER_PEER (1-16)
    int tcp_io_threads = 0;     // MC_TCP_IO_THREADS; 0 = by the number of cores
    bool tcp_checksum = false;  // MC_TCP_CHECKSUM
    // memory of devices over networks that move host memory only
    uint64_t staging_bytes = 64 << 20;  // MC_CUDA_STAGING: pinned host memory, at most; made when it is needed
    bool stream_failure_ends = true;    // MC_CUDA_ON_STREAM_FAILURE: exit, or continue: a failed transfer on a stream ends the process
    FabricOptions fabric;
    // metrics
    bool metrics_log = false;        // MC_TE_METRIC
    Duration metrics_interval = 5s;  // MC_TE_METRIC_INTERVAL_SECONDS
    LogOptions log;                  // MC_LOG_LEVEL, MC_LOG_DIR
};

/// What memory of NVIDIA GPUs can be told (docs/guide/gpu.md): of the process, since its GPUs belong to all its engines.
struct CudaOptions {
    bool caller_sync = true;                // MC_CUDA_CALLER_SYNC: what was put on the default stream is waited for before memory is read
    uint64_t pin_max = uint64_t{64} << 30;  // MC_CUDA_PIN_MAX: bytes of memory of pools that are pinned at most; 0: none
    uint64_t pin_chunk = uint64_t{256} << 20;      // at one go: meanwhile other calls of CUDA wait
    uint64_t allocator_cache = uint64_t{1} << 30;  // MC_ALLOCATOR_CACHE: freed memory that nvlink_allocator.so keeps on a GPU, at most
};

/// Returns the value of a variable, nothing if it is not set.
using Environment = std::function<std::optional<std::string>(const char* name)>;

/// Defaults overlaid with the environment. A value that makes no sense is logged and leaves the default.
MC_EXPORT EngineOptions load_options(const Environment& environment);
MC_EXPORT EngineOptions load_options();
MC_EXPORT CudaOptions load_cuda_options(const Environment& environment);
/// The process environment: the only getenv() of the project is behind it.
MC_EXPORT Environment process_environment();

/// "", "0", "false", "no", "off" (any case) are off; everything else is on.
bool parse_flag(std::string_view text) noexcept;
/// "a, b,c" -> {"a", "b", "c"}; empty parts vanish.
MC_EXPORT std::vector<std::string> split_list(std::string_view text, char separator = ',');

}  // namespace mooncake
