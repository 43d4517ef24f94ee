// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/fork.h"
#include "base/gate.h"
#include "base/thread_annotations.h"
#include "store/client/client_core.h"
#include "store/client/copy_worker.h"
#include "store/client/read_sessions.h"
#include "store/client/registered_buffers.h"
#include "store/client/staging_pool.h"
#include "store/client/store_client.h"
#include "store/client/write_sessions.h"
#include "store/node/membership.h"

namespace mooncake::net {
class HttpServer;
}

namespace mooncake::store {

/// StoreClient over its parts: checks that it is open, then asks the part that knows. Thread-safe.
class ClientImpl final : public StoreClient, private MembershipListener {
public:
    /// As StoreClient::create(), with a given way to the master (empty: config.master is connected).
    static tl::expected<std::unique_ptr<StoreClient>, StoreCode> create(StoreConfig config, std::unique_ptr<MasterApi> master,
                                                                        MembershipOptions membership = {});
    ClientImpl(std::unique_ptr<ClientCore> core, bool own_engine, MembershipOptions membership);
    ~ClientImpl() override;
    void close() override;

    const std::string& name() const noexcept override { return core_->name; }
    ClientId id() const noexcept override { return core_->id; }
    Engine& engine() noexcept override { return *core_->engine; }
    const StoreConfig& config() const noexcept override { return core_->config; }
    metrics::Registry& metrics() noexcept override { return core_->metrics.registry; }
    bool master_reachable() override;

    std::vector<StoreCode> write(std::span<const ValueToWrite> values, const WriteConfig& config, bool replace) override;
    std::vector<int64_t> read(std::span<const ValueToRead> values) override;
    std::vector<int64_t> read_parts(std::span<const PartToRead> parts) override;
    std::vector<ValueInfo> find(std::span<const std::string_view> keys) override;
    std::vector<ValueInfo> locate(std::span<const std::string_view> keys) override;
    std::vector<int32_t> exist(std::span<const std::string_view> keys) override;
    std::vector<StoreCode> remove(std::span<const std::string_view> keys, bool force) override;
    int64_t remove_by_regex(std::string_view pattern, bool force) override;
    int64_t remove_all(bool force) override;
    std::vector<StoreCode> replica_clear(std::span<const std::string_view> keys, std::string_view segment_name) override;

    std::vector<StoreCode> open_reads(std::span<const std::string_view> keys) override;
    std::vector<int64_t> read_open(std::span<const PartToRead> parts) override;
    bool close_reads(std::span<const std::string_view> keys) override;
    std::vector<StoreCode> open_writes(std::span<const Reservation> values, const WriteConfig& config) override;
    std::vector<int64_t> write_open(std::span<const PartToWrite> parts) override;
    std::vector<StoreCode> close_writes(std::span<const std::string_view> keys, bool revoke) override;

    StoreCode register_buffer(void* address, uint64_t length) override;
    StoreCode unregister_buffer(void* address) override;
    std::optional<Piece> registered_range(const void* address) const override;
    void drop_unreadable(std::span<Piece> sources) const override;
    bool all_registered(std::span<const Piece> pieces) const override;
    StagingBuffer stage(uint64_t length) override;

    MountedSegments mount_file(const FileToMount& file) override;
    MountedSegments mount_memory(uint64_t bytes, std::string_view protocol, std::string_view location) override;
    StoreCode unmount(std::span<const SegmentId> segments, Duration grace) override;

    TaskReply create_task(const TaskRequest& request) override;
    tl::expected<TaskInfo, StoreCode> query_task(const TaskId& task) override;

private:
    /// `known` is the last range found: the blocks of a batch mostly share one.
    bool is_registered(const Piece& piece, Piece& known) const;
    /// Memory that is given back only when its grace is over.
    struct Leaving {
        Time at{};
        std::shared_ptr<const LocalSegments::Held> held;
    };

    void keys_changed(const std::vector<KeyChanged>& keys) override;
    void all_keys_changed() override;
    void master_answered(BootTime good_until) override { core_->fence.renew(good_until); }
    void master_lost() override;
    void master_found(uint64_t epoch) override;
    void copy_ordered(const CopyOrder& order) override;

    StoreCode start(Deadline deadline);
    StoreCode make_staging();
    void start_http();
    MountedSegments mount(Result<std::shared_ptr<LentMemory>> memory, std::string_view protocol);
    std::vector<int32_t> ask_existing(std::span<const std::string_view> keys);
    int64_t remove_matching(std::string_view pattern, bool force);
    std::vector<Leaving> wait_for_leaving(const std::stop_token& stop) MC_NO_THREAD_ANALYSIS;
    void give_back_in_time(const std::stop_token& stop);
    void log_metrics(const std::stop_token& stop);
    /// Proof that the client is open; empty when it is not.
    Gate::Pass enter() const;
    bool forked() const noexcept { return fork_generation() != born_; }

    const uint32_t born_ = fork_generation();
    const bool own_engine_;
    std::unique_ptr<ClientCore> core_;
    std::unique_ptr<StagingPool> staging_;
    std::unique_ptr<ReadSessions> reads_;
    std::unique_ptr<WriteSessions> writes_;
    std::unique_ptr<CopyWorker> copies_;
    std::unique_ptr<Membership> membership_;
    std::unique_ptr<net::HttpServer> http_;
    bool known_master_ = false;  // only master_found()
    mutable Gate gate_;          // every call is inside
    Mutex close_mutex_;          // held while close() runs
    bool closed_ MC_GUARDED_BY(close_mutex_) = false;
    mutable RegisteredBuffers buffers_;
    void* staging_memory_ = nullptr;
    Mutex leaving_mutex_;
    std::condition_variable_any leaving_changed_;
    std::vector<Leaving> leaving_ MC_GUARDED_BY(leaving_mutex_);
    std::unique_ptr<std::jthread> leaving_thread_;  // started with the first of them
    std::unique_ptr<std::jthread> metrics_thread_;  // only if asked for
};

}  // namespace mooncake::store
