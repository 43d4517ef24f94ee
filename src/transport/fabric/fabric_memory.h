// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/thread_annotations.h"
#include "transport/fabric/keys.h"
#include "transport/fabric/plan.h"
#include "transport/fabric/rail.h"
#include "transport/fabric/wire.h"

namespace mooncake::fabric {

/// Our memory as the NICs know it: registers by plan, tells peers the keys, and takes them back. Thread-safe. Registrations must be
/// gone first.
class FabricMemory {
public:
    /// The rails outlive it.
    FabricMemory(std::vector<Rail*> rails, const NicLimits& limits);
    ~FabricMemory();

    /// Null where nothing needs to be known of the region.
    Result<std::unique_ptr<Registration>> add(const MemoryRegion& region);

    /// What a rail needs to use local memory: its descriptor there, and how far it reaches.
    struct Local {
        void* descriptor = nullptr;
        uint64_t room = 0;  // bytes from the address on; 0: not registered with that rail
    };
    Local find_local(uint64_t address, uint32_t rail) const;

    // What peers ask over the control plane.
    ResolveAnswer resolve(const ResolveRequest& request);
    Result<RailsAnswer> fence(const FenceRequest& request);
    RailsAnswer rails() const;

private:
    class Entry;
    struct Chunk {
        PlannedChunk plan;
        bool remote = false;                           // peers may use it
        bool told = false;                             // the keys were given to somebody
        std::vector<std::unique_ptr<MemoryKey>> keys;  // by rail; null: not registered there
    };
    using Chunks = std::vector<std::unique_ptr<Chunk>>;

    Result<> place(const MemoryRegion& region, const Placement& placement, Chunks& chunks);
    void close_keys(Chunk& chunk);
    Result<> revoke(std::span<const std::unique_ptr<Chunk>> chunks);
    ChunkRecord tell(Chunk& chunk) MC_REQUIRES(mutex_);

    const std::vector<Rail*> rails_;
    KeySource key_source_;
    Mutex ledger_mutex_;  // held while registering: one at a time, so that what one learns the next knows
    NicLedger ledger_ MC_GUARDED_BY(ledger_mutex_);
    mutable Mutex mutex_;
    std::map<uint64_t, Chunk*> chunks_ MC_GUARDED_BY(mutex_);  // by address
};

}  // namespace mooncake::fabric
