// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/thread_annotations.h"
#include "base/time.h"
#include "engine/engine.h"
#include "transport/access.h"
#include "transport/memory.h"
#include "transport/transport.h"

namespace mooncake {

/// The memory our process has registered: who may touch it and what the transports did for it.
///
/// Registered ranges never overlap, except that exact duplicates and ranges inside a registered one are counted. The widest
/// range is what peers see; when it goes while inner ones remain, those become ranges of their own. Lookups are O(log n) and
/// never wait for a registration or a fence in progress. Thread-safe.
class MemoryRegistry {
public:
    /// `access` and the transports outlive the registry.
    MemoryRegistry(AccessTable& access, std::vector<Transport*> transports) : access_(access), transports_(std::move(transports)) {}
    ~MemoryRegistry();

    Result<> add(const MemoryRegion& region);
    /// Returns when no peer touches the range any more. kNotRegistered; kBusy when a peer kept touching it until the deadline: then
    /// the range is forbidden but still taken, and remove() may be called again.
    Result<> remove(const std::byte* address, Deadline deadline);

    /// The registered region around [address, address + length); null if some byte of it is not registered. A range that spans
    /// neighbours gives the first of them.
    const MemoryRegion* find(const std::byte* address, uint64_t length) const;
    /// Appends one slice per block (neighbours that continue each other on both sides become one), all for one completion, and
    /// returns how many. Blocks of no bytes vanish.
    size_t resolve(std::span<const Block> blocks, Completion* completion, std::vector<Slice>& slices) const;

    /// Moves whenever a range goes: what resolve() gave before may name memory that is no longer registered.
    uint64_t version() const noexcept { return version_.load(std::memory_order_acquire); }

    std::vector<BufferRecord> buffers(size_t limit) const;
    size_t size() const;

private:
    struct Inner {
        uint64_t length = 0;
        uint32_t count = 0;
    };
    struct Entry {
        MemoryRegion* region = nullptr;                        // from pool_, stable
        std::vector<std::unique_ptr<Registration>> handles;    // one per transport that needs any
        uint32_t count = 1;                                    // registrations of exactly this range
        std::map<const std::byte*, std::vector<Inner>> inner;  // contained ranges by start, the newest last
        bool draining = false;                                 // forbidden, its fence not yet passed; changes under both mutexes
        bool fencing = false;                                  // a remove() waits for the fence
        bool allowed = false;                                  // in access_
    };
    using Entries = std::map<const std::byte*, Entry>;

    Result<> add_locked(const MemoryRegion& region) MC_REQUIRES(change_mutex_);
    Result<> add_inside(Entry& entry, const MemoryRegion& region) MC_REQUIRES(change_mutex_);
    Result<> publish(const MemoryRegion& region) MC_REQUIRES(change_mutex_);
    Result<> revoke(Entry& entry, Deadline deadline);
    /// Takes one count away; the entry to fence and erase if that was the last of the widest range.
    Result<Entry*> release(const std::byte* address) MC_REQUIRES(change_mutex_);
    Entries::const_iterator around(const std::byte* address) const MC_THREAD_ATTRIBUTE(requires_shared_capability(lookup_mutex_));
    MemoryRegion* take_region() MC_REQUIRES(change_mutex_);

    AccessTable& access_;
    const std::vector<Transport*> transports_;

    mutable Mutex change_mutex_;  // one change at a time; never held while a fence waits
    std::deque<MemoryRegion> pool_ MC_GUARDED_BY(change_mutex_);
    std::vector<MemoryRegion*> free_regions_ MC_GUARDED_BY(change_mutex_);
    mutable SharedMutex lookup_mutex_;  // entries_ changes under both mutexes
    Entries entries_;
    std::atomic<uint64_t> version_{1};
};

}  // namespace mooncake
