// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>

#include "base/gate.h"
#include "base/options.h"
#include "base/shared_memory.h"
#include "coordination/directory.h"
#include "engine/batch.h"
#include "engine/control_plane.h"
#include "engine/core.h"
#include "engine/describer.h"
#include "engine/inbox.h"
#include "engine/locator.h"
#include "engine/memory_registry.h"
#include "engine/publisher.h"
#include "engine/router.h"
#include "engine/service.h"
#include "engine/session.h"
#include "metrics/metrics.h"
#include "net/socket.h"
#include "rpc/rpc.h"
#include "transport/access.h"

namespace mooncake {

/// Everything a running engine is made of, in order of construction: what stands later uses what stands earlier and goes first.
struct EngineParts final : Notifier {
    EngineConfig config;
    Incarnation incarnation = Incarnation::random();
    std::string name;  // our segment
    std::string host;  // where peers reach us
    metrics::Registry metrics;
    AccessTable access;
    Mutex memory_mutex;
    using Allocations = std::map<void*, SharedMemory>;
    std::unique_ptr<Allocations> allocations MC_GUARDED_BY(memory_mutex) =
        std::make_unique<Allocations>();      // from allocate_memory(); outlives all who may touch it
    std::unique_ptr<net::Interrupt> closing;  // ends connects under way
    std::unique_ptr<RpcControl> control;
    std::unique_ptr<TransportContext> context;
    std::unique_ptr<Directory> directory;  // null: peer to peer
    std::unique_ptr<rpc::Server> server;
    std::unique_ptr<rpc::Client> client;
    Service service;
    std::unique_ptr<Router> router;
    std::unique_ptr<MemoryRegistry> registry;
    std::unique_ptr<Describer> describer;
    std::unique_ptr<Locator> locator;
    std::unique_ptr<SessionTable> sessions;
    std::unique_ptr<Publisher> publisher;     // null: peer to peer
    std::unique_ptr<MetricsLog> metrics_log;  // null: not asked for
    EngineCore core;
    BatchTable batches;
    Inbox inbox;
    std::atomic<bool> sweeping{false};               // a sweep waits for its turn
    Gate gate;                                       // every call is inside; closed by close()
    Mutex close_mutex;                               // one close() at a time; held while it runs
    int close_steps MC_GUARDED_BY(close_mutex) = 0;  // done
    Mutex fence_mutex;                               // one fence at a time; held while it waits
    bool fenced MC_GUARDED_BY(fence_mutex) = false;

    /// Listens, publishes; after it returned success peers can find us.
    static Result<std::unique_ptr<EngineParts>> create(EngineConfig config);
    ~EngineParts() override;
    Result<> close();  // as Engine::close()
    /// Every step of close() was taken; the fence may still be missing.
    bool closed();
    /// Behind the fence and without any thread of ours: gives back what only running needs.
    void let_go();
    /// For a closed gate: returns when nobody touches memory of ours any more, or kBusy.
    Result<> fence();

    SegmentDescriptor describe(uint32_t buffers_max) const;
    /// At that control port, an engine that has our name and is not this one.
    bool another_lives(const std::string& address, Deadline deadline);
    Result<> notify(Session& session, const Notification& notification, Incarnation life, Deadline deadline) override;
    /// A batch of one task. It has its id before anything moves: nobody could ask after it, or stop it, otherwise.
    Result<BatchId> submit_alone(const std::shared_ptr<Session>& session, Addresses addresses, Direction direction,
                                 std::span<const Block> blocks, const Notification* notification, Deadline deadline, Behind behind = {});

private:
    /// The next thing that close() does. False: there is none.
    bool close_further(std::vector<std::shared_ptr<Link>>& links) MC_REQUIRES(close_mutex);
    void withdraw();
    Result<> choose_names();
    Result<> choose_interfaces();
    Result<> listen();
    void install_handlers();
    void schedule_sweep();
    void sweep();
    void schedule_metrics_log();
};

}  // namespace mooncake
