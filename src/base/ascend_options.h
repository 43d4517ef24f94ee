// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/options.h"
#include "base/time.h"

namespace mooncake {

/// What NPUs can be told (docs/guide/ascend.md). Read when an engine is made, and not before: programs set some of it themselves.
struct AscendOptions {
    std::vector<std::string> libraries;  // MC_ASCEND_LIB: files, in place of the vendor's names; apart by ':'
    std::string home;                    // ASCEND_HOME_PATH: where the vendor's files are
    std::string api = "auto";            // MC_ASCEND_API: adxl, hixl
    std::optional<bool> required;        // MC_ASCEND_REQUIRED: nothing may take its place; not set: when the protocol names it
    Duration connect_timeout = 10s;      // ASCEND_CONNECT_TIMEOUT (ms)
    Duration transfer_timeout = 10s;     // ASCEND_TRANSFER_TIMEOUT (ms), and 1 ms for each MiB
    Duration idle_release = 0s;          // ASCEND_IDLE_RELEASE_MS; 0: links that nobody uses stay
    uint16_t base_port = 20000;          // ASCEND_BASE_PORT: a hundred for each device from there on
    int workers = 8;                     // ASCEND_THREAD_POOL_SIZE (1-16); 1 with a buffer pool
    bool async = false;                  // ASCEND_USE_ASYNC_TRANSFER
    bool auto_connect = true;            // ASCEND_AUTO_CONNECT, where the library can
    bool short_connection = false;       // ASCEND_USE_SHORT_CONNECTION: a link lasts for one batch
    std::string buffer_pool = "0:0";     // ASCEND_BUFFER_POOL: NUM:SIZE_MB
    bool fabric_memory = false;          // ASCEND_ENABLE_USE_FABRIC_MEM
    std::string global_resource_config;  // ASCEND_GLOBAL_RESOURCE_CONFIG: passed on
    std::string local_comm_res;          // ASCEND_LOCAL_COMM_RES: passed on
    std::optional<int> traffic_class;    // ASCEND_RDMA_TC, or HCCL_RDMA_TC
    std::optional<int> service_level;    // ASCEND_RDMA_SL, or HCCL_RDMA_SL
    bool intra_roce = false;             // HCCL_INTRA_ROCE_ENABLE: for the vendor's library; we only print it

    bool pooled() const { return buffer_pool != "0:0"; }
};

MC_EXPORT AscendOptions load_ascend_options(const Environment& environment);

}  // namespace mooncake
