// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "base/time.h"
#include "store/client/client_metrics.h"
#include "store/client/key_turns.h"
#include "store/client/lease_cache.h"
#include "store/client/node_calls.h"
#include "store/client/slow_segments.h"
#include "store/member/doubtful_writes.h"
#include "store/member/pool_access.h"

namespace mooncake::store {

struct ClientConfig {
    std::string tenant = "default";
    uint64_t buffer_bytes = 0;  // of staging memory; 0: none
    bool checksum = true;
    bool http_server = false;
    uint16_t http_port = 9300;
    Duration metrics_interval = 0s;  // between log lines; 0: none
};

/// What the parts of one client share. The parts are thread-safe each; the rest is constant after construction.
struct ClientCore {
    ClientCore(PoolAccess& access, ClientConfig client_config);

    PoolAccess& pool;
    const ClientConfig config;
    ClientMetrics metrics;
    LeaseCache leases;
    SlowSegments slow;
    NodeCalls nodes;  // asked for what lies on their disks
    DoubtfulWrites doubts;
    KeyTurns replacing;                     // whose value one of our threads is replacing
    std::atomic<uint64_t> next_request{1};  // names put_start requests; 0 would mean none
    std::atomic<Time> settles_at{};         // after a change of master: until then other nodes may not have come back yet

    bool closing() const noexcept { return pool.closing.load(std::memory_order_acquire); }
    /// Of a write whose right ended before its bytes had moved: kTransferFail if it is worth beginning again.
    StoreCode lost_code() const { return pool.fence.mark().epoch != 0 ? StoreCode::kTransferFail : StoreCode::kRpcFail; }

private:
    DoubtfulWrites::Hooks doubt_hooks();
};

}  // namespace mooncake::store
