// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/fork.h"
#include "base/gate.h"
#include "base/thread_annotations.h"
#include "base/time.h"
#include "store/member/pool_access.h"
#include "store/node/catalogue.h"
#include "store/node/copy_worker.h"
#include "store/node/disk_config.h"
#include "store/node/lent_memory.h"
#include "store/node/node_disk.h"
#include "store/node/node_holdings.h"
#include "store/node/segment_config.h"
#include "store/node/warm_memory.h"

namespace mooncake::store {

struct NodeConfig {
    LentMemory::Pages pages;
    bool checksum = true;  // of what is copied, before it is
};

/// What a process lends to the pool: segments of its memory, the catalogue of what lies in them, and the copies the master orders. Needs
/// no client. PoolAccess::join() is given it as a listener, and its catalogue. Thread-safe. Borrows the pool, which must outlive it;
/// stopped with stop() or its destruction, after PoolAccess::begin_closing(). Its memory goes with PoolAccess::leave().
class Node final : public MembershipListener {
public:
    Node(PoolAccess& pool, NodeConfig config);
    ~Node() override { close(); }

    MountedSegments mount_file(const FileToMount& file);
    MountedSegments mount_memory(uint64_t bytes, std::string_view protocol, std::string_view location);
    /// Also frees what mount_memory allocated, when the grace is over.
    StoreCode unmount(std::span<const SegmentId> segments, Duration grace);

    /// Lends a directory on a disk, too; before the pool is joined, which then reports what lies there. Once. What makes no sense is kInvalidParams; a
    /// disk that cannot be used now costs only itself: kOk, without segments, and the log says why.
    MountedSegments open_disk(const DiskConfig& config, const std::string& protocol);
    NodeDisk* disk() noexcept { return disk_.get(); }  // null: none

    /// Lends memory that outlives the process, and writes down what becomes of it; before the pool is joined, which then reports what lies there. Once. The answer is for
    /// the membership; nothing: there was no earlier life, or it left nothing.
    Result<std::optional<FormerLife>> open_warm(std::unique_ptr<WarmMemory> memory, const std::string& protocol);
    /// After the pool was joined.
    MountedSegments mount_warm();
    WarmMemory* warm() noexcept { return warm_.get(); }  // null: none

    Catalogue& catalogue() noexcept { return catalogue_; }
    /// For PoolAccess::join().
    Holdings& holdings() noexcept { return holdings_; }

    /// Ends calls in flight and copies; later ones are refused with kUnavailableInCurrentStatus. Idempotent.
    void stop();
    /// Closes the disk; after PoolAccess::leave(), so that what the master drops until then goes. Idempotent.
    void close();

    void copy_ordered(const CopyOrder& order) override;
    void master_lost() override;
    void master_found(uint64_t epoch) override;

private:
    /// Memory that is given back only when its grace is over.
    struct Leaving {
        Time at{};
        SegmentId segment;
    };

    MountedSegments mount(Result<std::shared_ptr<LentMemory>> memory, std::string_view protocol);
    MountedSegments mount(const SegmentSpec& spec);
    SegmentSpec lend(const SegmentId& id, std::shared_ptr<LentMemory> memory, std::string_view protocol);
    void leave_later(const SegmentId& segment, Duration grace);
    std::vector<Leaving> wait_for_leaving(const std::stop_token& stop) MC_NO_THREAD_ANALYSIS;
    void give_back_in_time(const std::stop_token& stop);
    /// Proof that the node is open; empty when it is not.
    Gate::Pass enter() { return fork_generation() == born_ ? gate_.enter() : Gate::Pass(); }

    const uint32_t born_ = fork_generation();
    PoolAccess& pool_;
    const NodeConfig config_;
    Catalogue catalogue_;
    NodeHoldings holdings_{catalogue_};
    std::shared_ptr<NodeDisk> disk_;    // constant once the pool was joined
    std::unique_ptr<WarmMemory> warm_;  // the same
    SegmentSpec warm_spec_;
    Gate gate_;  // every call is inside
    Mutex leaving_mutex_;
    std::condition_variable_any leaving_changed_;
    std::vector<Leaving> leaving_ MC_GUARDED_BY(leaving_mutex_);
    std::jthread leaving_thread_ MC_GUARDED_BY(leaving_mutex_);  // started with the first of them
    CopyWorker copies_;
};

}  // namespace mooncake::store
