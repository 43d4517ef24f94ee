// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "base/error.h"
#include "store/master/options.h"
#include "store/service/event_hub.h"
#include "store/service/locked_master.h"
#include "store/service/master_metrics.h"

namespace mooncake::store {

struct MasterServerOptions {
    MasterOptions core;  // first_generation and hash_seed: chosen here where they are not set
    EventHubOptions stream;
    std::string host{};  // to listen on; empty: all addresses
    uint16_t port = 0;   // 0: any free one
    int threads = 0;     // of I/O; 0: as many as there are cores, at most 16
    uint64_t message_bytes_max = 64 << 20;
    uint64_t stream_bytes_max = 32 << 20;  // that a client has not read; then it is cut off
};

/// A master that serves: the state, its jobs, and the RPC port. Every life of it has another epoch. A client that vanishes is missed by its
/// heartbeats alone; connections come and go. Thread-safe, except that start() and stop() are called once, by the owner.
class MasterServer {
public:
    /// Listens already; nothing is answered before start(). kUnavailable, kAlreadyExists (the port).
    static Result<std::unique_ptr<MasterServer>> create(const MasterServerOptions& options);
    virtual ~MasterServer() = default;

    virtual void start() = 0;
    /// Answers what it has begun, tells everybody by closing the connections, joins. Idempotent.
    virtual void stop() = 0;
    virtual uint16_t port() const noexcept = 0;
    virtual uint64_t epoch() const noexcept = 0;

    /// For administration; as long as the server lives. Nobody else may alter the state once stop() begins.
    virtual LockedMaster& master() noexcept = 0;
    /// Something was done to it: the jobs look for what follows.
    virtual void touch() = 0;
    /// Returns when every client that follows has acknowledged the changes up to now, or has not in time: as calls over RPC are answered.
    virtual void settle() = 0;
    virtual MasterMetrics& metrics() noexcept = 0;
    virtual size_t followers() const = 0;
};

}  // namespace mooncake::store
