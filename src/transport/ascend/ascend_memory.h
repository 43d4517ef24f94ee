// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/thread_annotations.h"
#include "transport/ascend/station.h"
#include "transport/ascend/wire.h"
#include "transport/memory.h"

namespace mooncake::ascend {

/// Our registered memory, at the stations that reach it, and what peers are told of it. Thread-safe. Outlives its registrations.
class AscendMemory {
public:
    explicit AscendMemory(std::vector<Station*> stations) : stations_(std::move(stations)) {}

    /// Memory of a device at its own station, host memory at all of them. kNotSupported: of a device that has none.
    Result<std::unique_ptr<Registration>> add(const MemoryRegion& region);
    ResolveAnswer resolve(const ResolveRequest& request);

    /// Grows whenever memory is added.
    uint64_t version() const noexcept { return version_.load(std::memory_order_acquire); }
    /// When a region of ours came; 0: it is not registered here, and no link reaches it.
    uint64_t since(const MemoryRegion& region) const;

private:
    class Held;
    struct Area {
        RegionRecord record;
        bool told = false;  // to some peer: it may be linked
    };

    Result<> take_back(Held& held);

    const std::vector<Station*> stations_;
    std::atomic<uint64_t> version_{0};
    mutable Mutex mutex_;
    std::multimap<uint64_t, std::shared_ptr<Area>> areas_ MC_GUARDED_BY(mutex_);  // remote accessible, by address
    uint64_t longest_ MC_GUARDED_BY(mutex_) = 0;                                  // none of them was ever longer
    std::map<const MemoryRegion*, uint64_t> since_ MC_GUARDED_BY(mutex_);
};

}  // namespace mooncake::ascend
