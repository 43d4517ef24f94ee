// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "base/error.h"
#include "store/member/local_disk.h"
#include "store/member/pool_access.h"
#include "store/node/disk_config.h"
#include "store/node/disk_contents.h"
#include "store/node/read_pressure.h"
#include "store/node/stage_service.h"
#include "store/node/tier_metrics.h"
#include "store/node/tier_orders.h"
#include "store/node/tier_teller.h"
#include "store/tier/storage_tier.h"

namespace mooncake::store {

/// A node's disk: the values in its directory, what the master says about them, the copies between it and memory, and the service for readers elsewhere.
/// Thread-safe. Opened before the pool is joined, so that joining reports what was found. Borrows the pool.
class NodeDisk final : public LocalDisk, private TierObserver {
public:
    /// kInvalidArgument: the configuration makes no sense. kBusy: another process has the directory. Others: the disk cannot be used now.
    static Result<std::shared_ptr<NodeDisk>> open(PoolAccess& pool, const DiskConfig& config, const std::string& protocol);
    ~NodeDisk() override { close(); }

    const SegmentSpec& spec() const noexcept { return spec_; }
    Holdings& holdings() noexcept { return *contents_; }
    StorageTier& tier() noexcept { return *tier_; }
    const StageService& service() const noexcept { return *service_; }
    /// As DiskContents::settled().
    bool settled() const { return contents_->settled(); }
    uint64_t found() const noexcept { return found_; }  // values, at the start

    void copy_ordered(const CopyOrder& order) { orders_->add(order); }
    void master_lost();
    void master_found(uint64_t epoch) { teller_.master_found(epoch); }
    void read(std::span<DiskRead> reads, Deadline deadline) override;

    /// No more copies, nor answers to readers elsewhere. What the master drops is still removed. Idempotent.
    void stop();
    /// Closes the disk, too. Idempotent.
    void close();

private:
    explicit NodeDisk(PoolAccess& pool);
    Result<> start(const DiskConfig& config, const std::string& protocol);
    Result<> serve(const DiskConfig& config);
    void show_usage();
    /// Whether a value that went is there again.
    bool is_back(uint64_t generation) const;
    void on_gone(std::span<const TierObject> objects) noexcept override;

    PoolAccess& pool_;
    TierMetrics metrics_;
    ReadPressure reads_;
    TierTeller teller_;
    SegmentSpec spec_;
    uint64_t found_ = 0;
    std::atomic<bool> open_{false};      // the tier can be asked
    std::unique_ptr<StorageTier> tier_;  // closed before the others end
    std::unique_ptr<DiskContents> contents_;
    std::unique_ptr<TierOrders> orders_;
    std::unique_ptr<StageService> service_;
};

}  // namespace mooncake::store
