// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_annotations.h"
#include "base/time.h"
#include "store/allocation/slab.h"
#include "store/allocation/slot_index.h"
#include "store/protocol/objects.h"

namespace mooncake::store {

/// Where a value lies and what it is, as a master said; good until the lease ends. Plain data.
struct Place {
    static constexpr size_t kReplicasMax = 4;  // further ones are not remembered

    uint64_t generation = 0;  // 0: not known
    uint64_t length = 0, checksum = 0;
    uint64_t epoch = 0;  // the life of the master that said so
    Time lease_end{};
    uint32_t replica_count = 0;
    std::array<ReplicaLocation, kReplicasMax> replicas{};  // in the order to try them

    std::span<const ReplicaLocation> all_replicas() const { return {replicas.data(), replica_count}; }
    explicit operator bool() const noexcept { return generation != 0; }
};

/// What the master promised about keys, for as long as it promised: where values lie, and that they exist. Bounded; when it is full,
/// what is over or was not asked for lately goes first. Thread-safe; lookups do not wait for each other.
class LeaseCache {
public:
    explicit LeaseCache(size_t entries_max = 256 << 10);

    /// Taken before a question is sent. What changed between that and the answer is not remembered: the answer may be the older.
    using Ticket = uint64_t;
    Ticket ticket() const noexcept { return changes_.load(std::memory_order_acquire); }

    /// places[i] is set for keys whose lease holds at `now`; others stay as they are. Returns how many were set.
    size_t find(std::span<const std::string_view> keys, Time now, std::span<Place> places) const;
    /// results[i] = 1 for keys known to exist at `now`; others stay as they are. Returns how many were set.
    size_t find_existing(std::span<const std::string_view> keys, Time now, std::span<int32_t> results) const;

    /// keys[i] lies at places[i], where that is known.
    void remember(std::span<const std::string_view> keys, std::span<const Place> places, Ticket asked);
    /// keys[i] exists until `end` where results[i] is 1.
    void remember_existing(std::span<const std::string_view> keys, std::span<const int32_t> results, Time end, Ticket asked);

    void forget(std::string_view key);
    void forget(std::span<const std::string_view> keys);
    void forget_all();
    /// Soft leases given up to now are not relied on any more; places stay.
    void forget_soft_leases();

    size_t size() const;

private:
    struct Entry {
        std::string key;
        uint64_t hash = 0;
        Time soft_lease_end{};
        uint64_t soft_leased_in = 0;  // counts forget_soft_leases()
        Place place;
        mutable std::atomic<bool> used{false};

        // For Slab, which clears with a fresh one.
        Entry() = default;
        Entry& operator=(Entry&& other) noexcept;
    };
    static constexpr size_t kChangeBuckets = 4096;
    static constexpr size_t kAhead = 16;  // lookups whose memory is fetched at once

    static uint64_t hash_of(std::string_view key) noexcept;
    /// Calls visit(i, entry) for every key that has one.
    template <typename Visit>
    void find_each(std::span<const std::string_view> keys, Visit&& visit) const MC_THREAD_ATTRIBUTE(requires_shared_capability(mutex_));
    uint32_t lookup(std::string_view key, uint64_t hash) const MC_THREAD_ATTRIBUTE(requires_shared_capability(mutex_));
    Entry* entry_for(std::string_view key, uint64_t hash, Time now) MC_REQUIRES(mutex_);
    bool changed_since(uint64_t hash, Ticket asked) const MC_REQUIRES(mutex_) { return changed_at_[hash % kChangeBuckets] > asked; }
    void drop(uint32_t number) MC_REQUIRES(mutex_);
    void note_change(uint64_t hash) MC_REQUIRES(mutex_);
    void make_room(Time now) MC_REQUIRES(mutex_);

    const size_t entries_max_;
    std::atomic<uint64_t> changes_{1};
    mutable SharedMutex mutex_;
    Slab<Entry> entries_ MC_GUARDED_BY(mutex_);
    SlotIndex<4> index_ MC_GUARDED_BY(mutex_);
    uint32_t hand_ MC_GUARDED_BY(mutex_) = 1;  // where the search for a victim goes on
    uint64_t soft_lease_era_ MC_GUARDED_BY(mutex_) = 1;
    uint64_t all_changed_at_ MC_GUARDED_BY(mutex_) = 0, soft_leases_changed_at_ MC_GUARDED_BY(mutex_) = 0;
    std::vector<uint64_t> changed_at_ MC_GUARDED_BY(mutex_);  // by hash: the last change of any key there
};

}  // namespace mooncake::store
