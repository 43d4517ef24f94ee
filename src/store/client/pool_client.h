// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "base/fork.h"
#include "base/gate.h"
#include "base/thread_annotations.h"
#include "store/client/client_core.h"
#include "store/client/memory_loan.h"
#include "store/client/part_sessions.h"
#include "store/client/registered_buffers.h"
#include "store/client/staging_pool.h"
#include "store/client/values.h"
#include "store/member/pool_access.h"
#include "store/protocol/tasks.h"

namespace mooncake::net {
class HttpServer;
}

namespace mooncake::store {

/// Reads and writes the values of a pool. Needs no node. PoolAccess::join() is given it as a listener. Thread-safe; calls in flight end
/// with kUnavailableInCurrentStatus when the pool is closed, and so do all later ones. What the calls do is said where callers look, in
/// store/process/store_client.h. Borrows the pool, which must outlive it.
class PoolClient final : public MembershipListener {
public:
    PoolClient(PoolAccess& pool, ClientConfig config);
    ~PoolClient() override;
    /// Once the pool was joined.
    StoreCode start();
    /// Ends calls in flight; after PoolAccess::begin_closing(), before leave(). Idempotent.
    void close();

    bool master_reachable();

    std::vector<StoreCode> write(std::span<const ValueToWrite> values, const WriteConfig& config, bool replace);
    std::vector<int64_t> read(std::span<const ValueToRead> values);
    std::vector<int64_t> read_parts(std::span<const PartToRead> parts);
    std::vector<ValueInfo> find(std::span<const std::string_view> keys);
    std::vector<ValueInfo> locate(std::span<const std::string_view> keys);
    std::vector<int32_t> exist(std::span<const std::string_view> keys);
    std::vector<StoreCode> remove(std::span<const std::string_view> keys, bool force);
    int64_t remove_by_regex(std::string_view pattern, bool force);
    int64_t remove_all(bool force);
    std::vector<StoreCode> replica_clear(std::span<const std::string_view> keys, std::string_view segment_name);

    /// Our own, and those of somebody else.
    PartSessions& sessions();
    std::unique_ptr<PartSessions> other_sessions();

    StoreCode register_buffer(void* address, uint64_t length);
    StoreCode unregister_buffer(void* address);
    std::optional<Piece> registered_range(const void* address) const;
    [[nodiscard]] MemoryLoan drop_unreadable(std::span<Piece> sources);
    [[nodiscard]] MemoryLoan look_at(std::span<const Piece> targets);
    StagingBuffer stage(uint64_t length);
    uint64_t far_disk_reads() const { return core_->metrics.disk_hits.value(); }

    TaskReply create_task(const TaskRequest& request);
    tl::expected<TaskInfo, StoreCode> query_task(const TaskId& task);

    void keys_changed(const std::vector<KeyChanged>& keys) override;
    void all_keys_changed() override;
    void master_lost() override;
    void master_found(uint64_t epoch) override;

private:
    class Sessions;

    /// `known` is the last range found: the blocks of a batch mostly share one.
    bool is_registered(const Piece& piece, Piece& known) const;
    StoreCode make_staging();
    void start_http();
    std::vector<int32_t> ask_existing(std::span<const std::string_view> keys);
    int64_t remove_matching(std::string_view pattern, bool force);
    void log_metrics(const std::stop_token& stop);
    /// Proof that the client is open; empty when it is not.
    Gate::Pass enter() const;

    const uint32_t born_ = fork_generation();
    PoolAccess& pool_;
    const std::unique_ptr<ClientCore> core_;
    std::unique_ptr<StagingPool> staging_;
    Mutex sessions_mutex_;
    std::set<Sessions*> all_sessions_ MC_GUARDED_BY(sessions_mutex_);
    std::unique_ptr<Sessions> sessions_;
    std::unique_ptr<net::HttpServer> http_;
    bool known_master_ = false;  // only master_found()
    mutable Gate gate_;          // every call is inside
    mutable RegisteredBuffers buffers_;
    MemoryLender lender_{*pool_.engine};
    void* staging_memory_ = nullptr;
    std::jthread metrics_thread_;  // only if asked for
};

}  // namespace mooncake::store
