// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/fork.h"
#include "base/gate.h"
#include "base/thread_annotations.h"
#include "metrics/metrics.h"
#include "store/bridge/client/host_memory.h"
#include "store/bridge/client/node_line.h"
#include "store/bridge/messages.h"
#include "store/client/registered_buffers.h"
#include "store/client/staging_pool.h"
#include "store/process/store_client.h"

namespace mooncake::store::bridge {

struct ThinConfig {
    uint64_t buffer_bytes = 16 << 20;  // of working memory; 0: none
    std::string server_address;        // "host:port" of a node on this host
    StoreOptions options;
};

/// A client whose calls a node on this host carries out. It has no engine and no threads. Values go by memory that both have: what lies in memory of
/// HostBlocks that was registered is used where it is, all else passes through the working memory. Thread-safe.
class MC_EXPORT ThinClient final : public StoreClient {
public:
    /// kInvalidParams, kRpcFail (no node).
    static tl::expected<std::unique_ptr<StoreClient>, StoreCode> create(ThinConfig config);
    explicit ThinClient(ThinConfig config, uint16_t port);
    ~ThinClient() override;
    void close() override;

    const std::string& name() const noexcept override { return name_; }
    ClientId id() const noexcept override { return {}; }
    Engine* engine() noexcept override { return nullptr; }
    const StoreConfig& config() const noexcept override { return store_config_; }
    metrics::Registry& metrics() noexcept override { return metrics_; }
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
    std::unique_ptr<PartSessions> other_sessions() override { return nullptr; }  // nobody else has any here

    StoreCode register_buffer(void* address, uint64_t length) override;
    StoreCode unregister_buffer(void* address) override;
    std::optional<Piece> registered_range(const void* address) const override;
    MemoryLoan drop_unreadable(std::span<Piece> sources) override;
    MemoryLoan look_at(std::span<const Piece> targets) override;
    StagingBuffer stage(uint64_t length) override;
    std::byte* allocate_shared(uint64_t bytes) override;
    std::vector<bool> are_shared(std::span<void* const> addresses) override;

    /// A thin client lends nothing: kUnavailableInCurrentMode.
    MountedSegments mount_file(const FileToMount& file) override;
    MountedSegments mount_memory(uint64_t bytes, std::string_view protocol, std::string_view location) override;
    StoreCode unmount(std::span<const SegmentId> segments, Duration grace) override;
    StoreCode unmount_disk(Duration grace) override;
    uint64_t far_disk_reads() override;
    TaskReply create_task(const TaskRequest& request) override;
    tl::expected<TaskInfo, StoreCode> query_task(const TaskId& task) override;

private:
    /// Memory that both have, by where it begins here.
    struct Shared {
        uint32_t entry = 0;
        uint32_t uses = 0;  // registrations; the working memory has one that nobody ends
        std::shared_ptr<HostBlock> block;
    };
    class Plan;  // of thin_values.cpp

    Gate::Pass enter() const { return fork_generation() == born_ ? gate_.enter() : Gate::Pass(); }
    StoreCode start();
    /// Asks, and takes the answer apart. The numbers are as many as `count`; a failure stands there as often.
    Reply ask(Kind kind, const Request& request, size_t count, bool repeatable = true);
    std::vector<StoreCode> ask_codes(Kind kind, const Request& request, size_t count);
    std::vector<ValueInfo> ask_values(Kind kind, std::span<const std::string_view> keys);
    std::vector<int64_t> ask_parts(Kind kind, std::span<const PartToRead> parts);
    int64_t ask_number(Kind kind, const Request& request);
    static StoreCode code_of(const Error& error);
    /// The piece as the node knows it; nothing: it lies elsewhere.
    std::optional<SharedPiece> shared_piece(const Piece& piece) const;

    const uint32_t born_ = fork_generation();
    const std::string name_;  // empty: nobody can reach us
    StoreConfig store_config_;
    metrics::Registry metrics_;
    NodeLine line_;
    mutable Gate gate_;  // every call is inside
    mutable RegisteredBuffers buffers_;
    mutable SharedMutex shared_mutex_;
    std::map<const std::byte*, Shared> shared_ MC_GUARDED_BY(shared_mutex_);
    Mutex register_mutex_;  // held while shared_ changes
    std::vector<std::shared_ptr<std::byte>> pool_ MC_GUARDED_BY(register_mutex_);
    std::shared_ptr<HostBlock> working_;
    std::unique_ptr<StagingPool> staging_;
};

}  // namespace mooncake::store::bridge
