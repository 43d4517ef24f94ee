// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/thread_annotations.h"
#include "base/time.h"
#include "engine/engine.h"
#include "rpc/rpc.h"
#include "store/node/read_pressure.h"
#include "store/node/stage_leases.h"
#include "store/node/staging_arena.h"
#include "store/node/tier_metrics.h"
#include "store/protocol/tiers.h"
#include "store/tier/storage_tier.h"

namespace mooncake::store {

struct StageOptions {
    StagingArena::Options arena;
    Duration lease = 5s;
    uint64_t request_bytes_max = 256 << 20;  // staged for one request
    size_t requests_max = 1024;              // that wait or run; more are told that there is no memory now
};

/// Where other processes ask for values on our disk: stages them in memory that the engine lets them read, for a while (docs/tiers.md). Listens where the
/// engine does, on a port of its own. The disk is closed between stop() and the end of this. Thread-safe.
class StageService {
public:
    /// All must outlive it.
    struct Setup {
        std::shared_ptr<Engine> engine;
        StorageTier& tier;
        TierMetrics& metrics;
        ReadPressure& reads;
        SegmentId segment;
    };
    static Result<std::unique_ptr<StageService>> create(const Setup& setup, const StageOptions& options);
    ~StageService();

    uint16_t port() const noexcept { return server_->port(); }
    /// Answers nothing any more. Idempotent.
    void stop();
    size_t leases() const { return leases_.size(); }
    uint64_t staging_bytes() const { return arena_.slab_bytes(); }

private:
    static constexpr size_t kThreads = 2;
    struct Request;

    StageService(const Setup& setup, const StageOptions& options, std::unique_ptr<rpc::Server> server);
    void on_stage(std::span<const std::byte> body, std::unique_ptr<rpc::Responder> responder);
    void on_release(std::span<const std::byte> body, std::unique_ptr<rpc::Responder> responder);
    void run(const std::stop_token& stop);
    /// Hands what is asked for to the disk.
    void begin(std::unique_ptr<Request> request);
    void begin_item(Request& request, size_t item);
    /// The disk has answered.
    void finish(Request& request);
    void settle(Request& request, size_t read, StageReply& reply, Time now);

    const Setup setup_;
    const StageOptions options_;
    StagingArena arena_;
    StageLeases leases_;
    Mutex mutex_;
    std::condition_variable_any changed_;
    std::deque<std::unique_ptr<Request>> asked_ MC_GUARDED_BY(mutex_), read_ MC_GUARDED_BY(mutex_);
    size_t requests_ MC_GUARDED_BY(mutex_) = 0;
    const std::unique_ptr<rpc::Server> server_;
    std::vector<std::jthread> threads_;
};

}  // namespace mooncake::store
