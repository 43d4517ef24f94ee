// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <functional>
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
    struct Settings {
        NicLimits limits;
        int parallel = 1;       // registrations at a time, each on another rail
        bool populate = false;  // make large host buffers exist beforehand, on several threads: a NIC that pins them does it on one
    };
    /// The rails outlive it.
    FabricMemory(std::vector<Rail*> rails, const Settings& settings);
    ~FabricMemory();

    /// From now on peers are told of a page of our own that they can read to see whether a path works. At most once, before anybody asks.
    void lend_probe();

    /// Null where nothing needs to be known of the region.
    Result<std::unique_ptr<Registration>> add(const MemoryRegion& region);

    /// What a rail needs to use local memory: its descriptor there, and how far it reaches.
    struct Local {
        void* descriptor = nullptr;
        uint64_t room = 0;  // bytes from the address on; 0: not registered with that rail
    };
    Local find_local(uint64_t address, uint32_t rail) const;

    /// Peers reach nothing of it any more.
    void stop_serving();

    // What peers ask over the control plane. They are not told of host memory that is unmapped by now.
    ResolveAnswer resolve(const ResolveRequest& request);
    Result<RailsAnswer> fence(const FenceRequest& request);
    RailsAnswer rails() const;

    /// Now and then: puts right what a fence could not, for lack of an endpoint.
    void mend();

private:
    class Entry;
    struct Chunk {
        PlannedChunk plan;
        bool remote = false;                           // peers may use it
        bool read_only = false;                        // but not write it
        bool host = false;                             // memory of the host
        bool told = false;                             // the keys were given to somebody
        std::vector<std::unique_ptr<MemoryKey>> keys;  // by rail; null: not registered there
    };
    using Chunks = std::vector<std::unique_ptr<Chunk>>;
    /// A whole page: what a NIC pins is not shared with anything else.
    struct alignas(4096) ProbePage {
        std::array<std::byte, 4096> bytes{};
    };

    /// Memory that none of our NICs can register: peers are told that it is there, without keys.
    std::unique_ptr<Registration> add_unreachable(const MemoryRegion& region);
    Result<> place(const MemoryRegion& region, const Placement& placement, Chunk& chunk);
    Result<std::unique_ptr<MemoryKey>> register_with(Rail& rail, Domain::KeyRequest request) MC_REQUIRES(rail.mutex());
    /// Returns once nothing lands any more that was sent to that epoch of a rail, or an earlier one.
    Result<> close_epoch(Rail& rail, uint64_t epoch);
    void unbind_all(Rail& rail) MC_REQUIRES(mutex_, rail.mutex());
    void bind_all(Rail& rail) MC_REQUIRES(mutex_, rail.mutex());
    std::vector<Result<>> place_all(const MemoryRegion& region, std::span<const Placement> placements, Chunks& chunks);
    /// Calls `body(i)` for every i below `count`, on several threads where that is allowed.
    void in_parallel(size_t count, const std::function<void(size_t)>& body) const;
    void report_pages() MC_REQUIRES(ledger_mutex_);
    void close_key(Chunk& chunk, uint32_t rail) MC_REQUIRES(rails_[rail]->mutex());
    void close_keys(Chunk& chunk);
    Result<> revoke(std::span<const std::unique_ptr<Chunk>> chunks);
    ChunkRecord tell(Chunk& chunk) MC_REQUIRES(mutex_);

    const std::vector<Rail*> rails_;
    const Settings settings_;
    KeySource key_source_;
    Mutex ledger_mutex_;  // held while registering: one at a time, so that what one learns the next knows
    NicLedger ledger_ MC_GUARDED_BY(ledger_mutex_);
    mutable Mutex mutex_;
    // By address. For a moment some may lie in others: a region that takes the place of a wider one comes before that goes.
    std::multimap<uint64_t, Chunk*> chunks_ MC_GUARDED_BY(mutex_);
    const std::unique_ptr<ProbePage> probe_page_ = std::make_unique<ProbePage>();
    Chunk probe_ MC_GUARDED_BY(mutex_);  // on no plan; without keys: not lent
    // By rail, where keys belong to the serving endpoint: what has to go before it, and comes back with the next one. Guarded by the rail's lock.
    std::vector<std::map<Chunk*, Domain::KeyRequest>> bound_;
};

}  // namespace mooncake::fabric
