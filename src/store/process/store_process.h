// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "base/fork.h"
#include "base/thread_annotations.h"
#include "store/client/pool_client.h"
#include "store/member/pool_access.h"
#include "store/node/node.h"
#include "store/process/store_client.h"

namespace mooncake::store {

/// A client and a node that share one place in the pool. Adds nothing to what they do but their beginning and their end. Thread-safe.
class StoreProcess final : public StoreClient {
public:
    /// As StoreClient::create(), with a given way to the master (empty: config.master is connected).
    static tl::expected<std::unique_ptr<StoreClient>, StoreCode> create(StoreConfig config, std::unique_ptr<MasterApi> master,
                                                                        MembershipOptions membership = {});
    /// `own_engine`: closed at the end.
    StoreProcess(StoreConfig config, PoolAccess::Setup setup, bool own_engine, std::unique_ptr<WarmMemory> warm = nullptr);
    ~StoreProcess() override;
    void close() override;

    const std::string& name() const noexcept override { return pool_->name; }
    ClientId id() const noexcept override { return pool_->id; }
    Engine* engine() noexcept override { return pool_->engine.get(); }
    const StoreConfig& config() const noexcept override { return config_; }
    metrics::Registry& metrics() noexcept override { return pool_->metrics.registry; }

    bool master_reachable() override { return client_->master_reachable(); }
    std::vector<StoreCode> write(std::span<const ValueToWrite> values, const WriteConfig& config, bool replace) override {
        return client_->write(values, config, replace);
    }
    std::vector<int64_t> read(std::span<const ValueToRead> values) override { return client_->read(values); }
    std::vector<int64_t> read_parts(std::span<const PartToRead> parts) override { return client_->read_parts(parts); }
    std::vector<ValueInfo> find(std::span<const std::string_view> keys) override { return client_->find(keys); }
    std::vector<ValueInfo> locate(std::span<const std::string_view> keys) override { return client_->locate(keys); }
    std::vector<int32_t> exist(std::span<const std::string_view> keys) override { return client_->exist(keys); }
    std::vector<StoreCode> remove(std::span<const std::string_view> keys, bool force) override { return client_->remove(keys, force); }
    int64_t remove_by_regex(std::string_view pattern, bool force) override { return client_->remove_by_regex(pattern, force); }
    int64_t remove_all(bool force) override { return client_->remove_all(force); }
    std::vector<StoreCode> replica_clear(std::span<const std::string_view> keys, std::string_view segment_name) override {
        return client_->replica_clear(keys, segment_name);
    }
    std::vector<StoreCode> open_reads(std::span<const std::string_view> keys) override { return client_->sessions().open_reads(keys); }
    std::vector<int64_t> read_open(std::span<const PartToRead> parts) override { return client_->sessions().read_open(parts); }
    bool close_reads(std::span<const std::string_view> keys) override { return client_->sessions().close_reads(keys); }
    std::vector<StoreCode> open_writes(std::span<const Reservation> values, const WriteConfig& config) override {
        return client_->sessions().open_writes(values, config);
    }
    std::vector<int64_t> write_open(std::span<const PartToWrite> parts) override { return client_->sessions().write_open(parts); }
    std::vector<StoreCode> close_writes(std::span<const std::string_view> keys, bool revoke) override {
        return client_->sessions().close_writes(keys, revoke);
    }
    std::unique_ptr<PartSessions> other_sessions() override { return client_->other_sessions(); }
    StoreCode register_buffer(void* address, uint64_t length) override { return client_->register_buffer(address, length); }
    StoreCode unregister_buffer(void* address) override { return client_->unregister_buffer(address); }
    std::optional<Piece> registered_range(const void* address) const override { return client_->registered_range(address); }
    MemoryLoan drop_unreadable(std::span<Piece> sources) override { return client_->drop_unreadable(sources); }
    MemoryLoan look_at(std::span<const Piece> targets) override { return client_->look_at(targets); }
    StagingBuffer stage(uint64_t length) override { return client_->stage(length); }
    MountedSegments mount_file(const FileToMount& file) override { return node_->mount_file(file); }
    MountedSegments mount_memory(uint64_t bytes, std::string_view protocol, std::string_view location) override {
        return node_->mount_memory(bytes, protocol, location);
    }
    StoreCode unmount(std::span<const SegmentId> segments, Duration grace) override { return node_->unmount(segments, grace); }
    StoreCode unmount_disk(Duration grace) override;
    uint64_t far_disk_reads() override { return client_->far_disk_reads(); }
    TaskReply create_task(const TaskRequest& request) override { return client_->create_task(request); }
    tl::expected<TaskInfo, StoreCode> query_task(const TaskId& task) override { return client_->query_task(task); }

private:
    StoreCode start(MembershipOptions membership);
    StoreCode start_warm(MembershipOptions& membership);
    bool forked() const noexcept { return fork_generation() != born_; }

    const uint32_t born_ = fork_generation();
    const StoreConfig config_;
    const bool own_engine_;
    std::unique_ptr<PoolAccess> pool_;  // outlives both
    std::unique_ptr<Node> node_;
    std::unique_ptr<PoolClient> client_;
    std::unique_ptr<WarmMemory> warm_;  // until the node has it
    std::atomic<bool> started_{false};
    Mutex close_mutex_;  // held while close() runs
    bool closed_ MC_GUARDED_BY(close_mutex_) = false;
};

}  // namespace mooncake::store
