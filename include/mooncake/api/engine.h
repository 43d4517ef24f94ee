// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "export.h"
#include "status.h"
#include "types.h"

namespace mooncake::api {

/// Stands for a way to move bytes; only good to be compared with null.
class Transport;

/// What the engine knows about segments. Thread-safe; answers null once its engine is gone.
class MOONCAKE_API TransferMetadata {
public:
    explicit TransferMetadata(uint64_t engine) noexcept : engine_(engine) {}

    /// Asks the peer for its registered buffers; null if it does not answer.
    std::shared_ptr<SegmentDesc> getSegmentDescByID(SegmentID segment, bool force_update = false) const;
    std::shared_ptr<SegmentDesc> getSegmentDescByName(const std::string& name, bool force_update = false) const;

private:
    const uint64_t engine_;
};

/// Ranges on their way. Movable; waits for them when destroyed. One thread at a time.
class MOONCAKE_API ScatterTransferOperation {
public:
    ScatterTransferOperation() noexcept;  // of nothing: complete
    ScatterTransferOperation(ScatterTransferOperation&& other) noexcept;
    ScatterTransferOperation& operator=(ScatterTransferOperation&& other) noexcept;
    ~ScatterTransferOperation();

    /// Until every fragment is finished. The first error, or ok. May be called again.
    Status wait();
    /// As wait(); IsClock() when it takes longer, and then nothing is cancelled.
    Status waitFor(std::chrono::nanoseconds time);

private:
    friend class TransferEngine;
    class Impl;
    explicit ScatterTransferOperation(std::unique_ptr<Impl> impl) noexcept;
    std::unique_ptr<Impl> impl_;
};

/// Lends memory of this process to peers and moves bytes between it and theirs. Everything but init(), freeEngine() and the
/// set...() functions may be called from any thread at any time. Before init() and after freeEngine() every call fails.
///
/// Batches: allocateBatchID -> submitTransfer, possibly several times -> getTransferStatus until terminal -> freeBatchID.
/// A task that failed, timed out or was cancelled moves no byte any more.
class MOONCAKE_API TransferEngine {
public:
    explicit TransferEngine(bool auto_discover = false);
    /// `filter`: the NICs to use; empty: all.
    TransferEngine(bool auto_discover, const std::vector<std::string>& filter);
    TransferEngine(TransferEngine&& other) noexcept;
    TransferEngine& operator=(TransferEngine&& other) noexcept;
    /// As freeEngine().
    ~TransferEngine();

    // ---- before init(). All transports are always ready: auto discovery changes nothing but the preferred protocol.
    void setAutoDiscover(bool enabled);
    void setAutoDiscover(const AutoDiscoverConfig& config);
    void setWhitelistFilters(std::vector<std::string>&& filters);

    // ---- life. 0, or a negative code.
    /// Reads the MC_* environment variables. The last two arguments are not needed.
    int init(const std::string& metadata_conn_string, const std::string& local_server_name, const std::string& ip_or_host_name = "",
             uint64_t rpc_port = 12345);
    /// Stops running transfers, takes our entries from the directory, waits for calls in other threads.
    int freeEngine();
    /// SIGTERM, SIGINT and exit() close the engine; the signals then end the process with 128 + signal.
    void enableGracefulShutdown();

    // ---- transports are chosen per peer; nothing needs installing. Null: unknown protocol.
    Transport* installTransport(const std::string& proto, void** args = nullptr);
    int uninstallTransport(const std::string& proto);
    Transport* getTransport(const std::string& proto);
    /// True while no NIC is driven by us.
    bool isTcpOnly() const;

    // ---- identity and surroundings
    /// Peer to peer, the name under which peers open us: "10.0.0.1:15123".
    std::string getLocalIpAndPort() const;
    int getRpcPort() const;  // negative code without an engine
    /// Empty without an engine, never null.
    std::shared_ptr<const Topology> getLocalTopology() const;
    std::string getLocalTopologyString() const;
    std::string showLinks(bool json = false) const;
    /// Of the NICs driven by us; none for transports through the kernel (tcp), which chooses the NIC by itself.
    int getNicLoadStats(std::vector<NicLoadStats>& stats) const;
    int numContexts() const;  // NICs driven by us
    void* getBaseAddr() const { return nullptr; }
    bool isUsingTent() const { return false; }

    // ---- segments
    SegmentHandle openSegment(const std::string& segment_name);  // INVALID_SEGMENT_ID on failure
    Status CheckSegmentStatus(SegmentID segment);
    int closeSegment(SegmentHandle segment);  // needs nothing
    int removeLocalSegment(const std::string& segment_name);
    /// Fetches one segment anew, or all. A peer that is gone is no error.
    int syncSegmentCache(const std::string& segment_name = "");
    std::shared_ptr<TransferMetadata> getMetadata() const;
    PeerLiveness probePeerAliveByID(SegmentID segment);

    // ---- memory. 0, or a negative code.
    int registerLocalMemory(void* addr, size_t length, const std::string& location = "*", bool remote_accessible = true,
                            bool update_metadata = true);
    int unregisterLocalMemory(void* addr, bool update_metadata = true);
    int registerLocalMemoryBatch(const std::vector<BufferEntry>& buffers, const std::string& location);
    int unregisterLocalMemoryBatch(const std::vector<void*>& addresses);
    /// Whether any registered memory lies in the range.
    bool checkOverlap(void* addr, uint64_t length) const;

    // ---- transfers
    BatchID allocateBatchID(size_t batch_size);  // INVALID_BATCH_ID on failure
    /// All entries or none. A peer that has restarted has new addresses, so each thread that uses it is refused once: by a task that fails, if it
    /// asks for its status, or here. Whoever opens the segment again is not.
    Status submitTransfer(BatchID batch, const std::vector<TransferRequest>& entries);
    /// The target of the first entry gets the message once the whole batch is complete.
    Status submitTransferWithNotify(BatchID batch, const std::vector<TransferRequest>& entries, NotifyDesc notify);
    Status getTransferStatus(BatchID batch, size_t task_id, TransferStatus& status);
    /// COMPLETED when all tasks are, with their bytes; FAILED if one failed or timed out; COMPLETED for an empty batch.
    Status getBatchTransferStatus(BatchID batch, TransferStatus& status);
    Status freeBatchID(BatchID batch);  // IsBatchBusy() while a task runs

    /// Many fragments at once. A range that is wrong in itself fails the operation and moves nothing of any range.
    ScatterTransferOperation submitScatter(const std::vector<ScatterTransferRange>& ranges);
    Status transferScatter(const std::vector<ScatterTransferRange>& ranges);

    // ---- messages. 0, or a negative code.
    int getNotifies(std::vector<NotifyDesc>& notifies);  // replaces the content with all since the last call
    int sendNotifyByID(SegmentID target, NotifyDesc notify);
    int sendNotifyByName(std::string remote_agent, NotifyDesc notify);

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace mooncake::api
