// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/time.h"
#include "store/client/memory_loan.h"
#include "store/client/part_sessions.h"
#include "store/client/values.h"
#include "store/node/segment_config.h"
#include "store/process/store_options.h"
#include "store/protocol/codes.h"
#include "store/protocol/ids.h"
#include "store/protocol/objects.h"
#include "store/protocol/tasks.h"

namespace mooncake {
class Engine;
namespace metrics {
class Registry;
}
}  // namespace mooncake

namespace mooncake::store {

/// One process in the pool: a client, which reads and writes values, and a node, which lends memory if told to. Everything may be called from any thread; calls in
/// flight end with kUnavailableInCurrentStatus when close() is called, and so do all later ones. Answers have the length and the order
/// of the question. A failed read may have written to the pieces, a finished call touches nothing afterwards.
class MC_EXPORT StoreClient : public PartSessions {
public:
    /// kInvalidParams, kRpcFail (no master), kInternalError... as the code of the error's table in codes.h.
    static tl::expected<std::unique_ptr<StoreClient>, StoreCode> create(StoreConfig config);
    /// Closes.
    ~StoreClient() override = default;
    /// Ends calls in flight, takes our segments out of the pool, says goodbye. Idempotent.
    virtual void close() = 0;

    virtual const std::string& name() const noexcept = 0;  // host:port: what our segments are called
    virtual ClientId id() const noexcept = 0;
    virtual Engine* engine() noexcept = 0;  // null: a node of this host has one for us
    virtual const StoreConfig& config() const noexcept = 0;
    virtual metrics::Registry& metrics() noexcept = 0;
    /// Whether the master answered lately.
    virtual bool master_reachable() = 0;

    // ---- values
    /// Per value: kOk (also where a put finds a value already there: nothing is written), or why not. `replace` is upsert.
    virtual std::vector<StoreCode> write(std::span<const ValueToWrite> values, const WriteConfig& config, bool replace) = 0;
    /// Per value: bytes, or a StoreCode: kInvalidParams (pieces too short), kObjectNotFound, kReplicaIsNotReady, kTransferFail,
    /// kChecksumMismatch, kLeaseExpired.
    virtual std::vector<int64_t> read(std::span<const ValueToRead> values) = 0;
    /// As read(); kInvalidParams for parts beyond the end.
    virtual std::vector<int64_t> read_parts(std::span<const PartToRead> parts) = 0;
    /// Where they are. Leases them, so that a read soon after needs no question.
    virtual std::vector<ValueInfo> find(std::span<const std::string_view> keys) = 0;
    /// The same as the master knows it now: what we remember may have been copied or moved since.
    virtual std::vector<ValueInfo> locate(std::span<const std::string_view> keys) = 0;
    virtual std::vector<int32_t> exist(std::span<const std::string_view> keys) = 0;  // 1, 0, or a StoreCode
    virtual std::vector<StoreCode> remove(std::span<const std::string_view> keys, bool force) = 0;
    virtual int64_t remove_by_regex(std::string_view pattern, bool force) = 0;  // how many, or a StoreCode
    virtual int64_t remove_all(bool force) = 0;
    virtual std::vector<StoreCode> replica_clear(std::span<const std::string_view> keys, std::string_view segment_name) = 0;

    using Reservation = store::Reservation;
    /// Sessions of somebody else: apart from our own, which are this object's. Must not outlive us.
    virtual std::unique_ptr<PartSessions> other_sessions() = 0;

    // ---- memory
    virtual StoreCode register_buffer(void* address, uint64_t length) = 0;
    virtual StoreCode unregister_buffer(void* address) = 0;
    /// The widest registered range around this address; nothing: none, or its memory is gone.
    virtual std::optional<Piece> registered_range(const void* address) const = 0;
    /// For sources that a caller gave as bare addresses: makes those null, which write() refuses, that are not registered and
    /// cannot be read. Asks the kernel and the devices; never faults. The loan is kept until the call with them is over.
    [[nodiscard]] virtual MemoryLoan drop_unreadable(std::span<Piece> sources) = 0;
    /// The same for memory that a caller wants to be filled: `unsure` goes to read().
    [[nodiscard]] virtual MemoryLoan look_at(std::span<const Piece> targets) = 0;
    /// From the staging buffer of config().buffer_bytes; empty when there is not enough left.
    virtual StagingBuffer stage(uint64_t length) = 0;
    /// Memory that a node of this host can be given by register_buffer(), for as long as we live. Null: there is none, or we are the node.
    virtual std::byte* allocate_shared(uint64_t /*bytes*/) { return nullptr; }
    /// Per address: whether the node that is there now has the memory that was registered there.
    virtual std::vector<bool> are_shared(std::span<void* const> addresses) { return std::vector<bool>(addresses.size()); }

    // ---- segments
    virtual MountedSegments mount_file(const FileToMount& file) = 0;
    virtual MountedSegments mount_memory(uint64_t bytes, std::string_view protocol, std::string_view location) = 0;
    /// Also frees what mount_memory allocated.
    virtual StoreCode unmount(std::span<const SegmentId> segments, Duration grace) = 0;

    /// Takes our disk out of the pool; what lies there stays for the next time it is lent. kOk where there is none.
    virtual StoreCode unmount_disk(Duration grace) = 0;
    /// How many values, or parts of them, were read from disks of other processes.
    virtual uint64_t far_disk_reads() = 0;

    // ---- tasks
    virtual TaskReply create_task(const TaskRequest& request) = 0;
    virtual tl::expected<TaskInfo, StoreCode> query_task(const TaskId& task) = 0;
};

}  // namespace mooncake::store
