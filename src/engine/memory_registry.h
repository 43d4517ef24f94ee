// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/thread_annotations.h"
#include "base/time.h"
#include "engine/engine.h"
#include "engine/registered_range.h"
#include "engine/unique_number.h"
#include "transport/access.h"
#include "transport/memory.h"
#include "transport/transport.h"

namespace mooncake {

/// The memory our process has registered: who may touch it and what the transports did for it.
///
/// Registered ranges are nested or apart, never crossed; exact duplicates are counted. The widest range is what peers see, with its
/// rights; when it goes while inner ones remain, those become ranges of their own, and peers find them without a gap. Lookups are
/// O(log n) and never wait for a registration or a fence in progress. Thread-safe.
class MemoryRegistry {
public:
    /// `access` and the transports outlive the registry.
    MemoryRegistry(AccessTable& access, std::vector<Transport*> transports) : access_(access), transports_(std::move(transports)) {}
    ~MemoryRegistry();

    Result<> add(const MemoryRegion& region);
    /// Takes one registration of a range back; of several that start there the narrowest goes first. Returns when no peer touches any
    /// more what nobody has registered now. kNotRegistered; kBusy when a peer kept touching it until the deadline: then the range is
    /// forbidden but still taken, and remove() may be called again. After another error nothing has changed.
    Result<> remove(const std::byte* address, Deadline deadline);
    /// As remove(), of everything registered within a range, as often as it may be. kOverlap: a registration reaches beyond it.
    Result<> remove_within(AddressRange range, Deadline deadline);
    /// Ends it all: no transport serves any more, and what is registered is forgotten. Nobody else may be in a call. kBusy as with
    /// remove(): may be called again.
    Result<> close(Deadline deadline);

    /// The registered region around [address, address + length); null if some byte of it is not registered. A range that spans
    /// neighbours gives the first of them.
    const MemoryRegion* find(const std::byte* address, uint64_t length) const;
    /// The kind of registered memory there: a device's if the first or the last byte is; the host's where neither is registered.
    MemoryKind kind_of(const std::byte* address, uint64_t length) const noexcept {
        return has_device_memory() ? find_kind(address, length) : MemoryKind::kHost;
    }
    /// The number of the device whose memory is registered there; -1: none's.
    int device_of(const std::byte* address, uint64_t length) const noexcept;
    /// Appends one slice per block (neighbours that continue each other on both sides become one), all for one completion, and
    /// returns how many. Blocks of no bytes vanish.
    size_t resolve(std::span<const Block> blocks, Completion* completion, std::vector<Slice>& slices) const;
    /// What a thread found last: who transfers mostly does so from the same memory again.
    struct Last {
        uint64_t version = 0;
        const MemoryRegion* region = nullptr;
        const std::byte* address = nullptr;
        uint64_t length = 0;

        bool contains(const Block& block) const noexcept {
            const auto offset = reinterpret_cast<uint64_t>(block.local) - reinterpret_cast<uint64_t>(address);
            return offset < length && block.length <= length - offset;
        }
    };
    /// The same, without a lock for one block in the region found last.
    size_t resolve(std::span<const Block> blocks, Completion* completion, std::vector<Slice>& slices, Last& last) const;

    /// Moves whenever a range goes: what resolve() gave before may name memory that is no longer registered. Also when memory of a device
    /// comes, which resolve() took for unregistered memory of the host before. No two registries ever have the same.
    uint64_t version() const noexcept { return version_.load(std::memory_order_acquire); }
    /// Moves whenever buffers() changes.
    uint64_t listing() const noexcept { return listing_.load(std::memory_order_acquire); }

    /// What peers see, in order of registration.
    std::vector<BufferRecord> buffers(size_t limit) const;
    /// What of that is not host memory, by address; neighbours of one device are one.
    std::vector<DeviceRange> device_memory(size_t limit) const;
    /// Whether anything registered is not host memory.
    bool has_device_memory() const noexcept { return device_regions_.load(std::memory_order_relaxed) != 0; }
    size_t size() const;

private:
    /// A widest range, as the transports and the peers know it.
    struct Entry {
        RegisteredRange range;
        MemoryRegion* region = nullptr;                      // from pool_, stable
        std::vector<std::unique_ptr<Registration>> handles;  // one per transport that needs any
        bool fencing = false;                                // once forbidden: a call waits for the fence
    };
    using Entries = std::map<const std::byte*, Entry>;
    using Going = std::list<Entry>::iterator;  // in forbidden_

    Result<> add_locked(const MemoryRegion& region) MC_REQUIRES(change_mutex_);
    /// Has the transports take a range on; nobody knows it yet.
    Result<Entry> open(RegisteredRange range) MC_REQUIRES(change_mutex_);
    void discard(Entry& entry) MC_REQUIRES(change_mutex_);
    void insert(Entry entry) MC_REQUIRES(change_mutex_);
    void take_out(Entries::iterator found) MC_REQUIRES(change_mutex_);
    /// Takes one registration away; the entry to fence if that was the last of the widest range.
    Result<std::optional<Going>> release(const std::byte* address) MC_REQUIRES(change_mutex_);
    /// Takes an entry out of use, and puts those registered inside it in its place.
    Result<Going> forbid(Entries::iterator found) MC_REQUIRES(change_mutex_);
    /// Waits until nobody touches forbidden entries any more, and forgets them.
    Result<> fence(std::span<const Going> entries, Deadline deadline);
    Result<> wait_for(const Entry& entry, Deadline deadline);
    /// Memory of a device must name its registration: a block that reaches from one into the next becomes a slice for each.
    void cut_at_borders(Block& block, Completion* completion, std::vector<Slice>& slices) const
        MC_THREAD_ATTRIBUTE(requires_shared_capability(lookup_mutex_));
    Entries::const_iterator around(const std::byte* address) const MC_THREAD_ATTRIBUTE(requires_shared_capability(lookup_mutex_));
    MemoryKind find_kind(const std::byte* address, uint64_t length) const noexcept;
    MemoryRegion* take_region() MC_REQUIRES(change_mutex_);

    AccessTable& access_;
    const std::vector<Transport*> transports_;

    mutable Mutex change_mutex_;  // one change at a time; never held while a fence waits
    std::deque<MemoryRegion> pool_ MC_GUARDED_BY(change_mutex_);
    std::deque<MemoryRegion*> free_regions_ MC_GUARDED_BY(change_mutex_);
    std::list<Entry> forbidden_ MC_GUARDED_BY(change_mutex_);  // still taken: their fence has not passed
    uint64_t last_number_ MC_GUARDED_BY(change_mutex_) = 0;
    bool closed_ MC_GUARDED_BY(change_mutex_) = false;
    mutable SharedMutex lookup_mutex_;  // what follows changes under both mutexes
    Entries entries_;
    std::map<uint64_t, const MemoryRegion*> order_;            // by number, those peers see
    std::map<const std::byte*, const MemoryRegion*> devices_;  // those that are not host memory
    std::atomic<size_t> device_regions_{0};                    // how many those are
    std::atomic<uint64_t> version_{unique_number()};
    std::atomic<uint64_t> listing_{1};
};

}  // namespace mooncake
