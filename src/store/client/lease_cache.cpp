// SPDX-License-Identifier: Apache-2.0
#include "store/client/lease_cache.h"

#include <algorithm>

#include "base/prefetch.h"
#include "store/protocol/stored_form.h"

namespace mooncake::store {

LeaseCache::Entry& LeaseCache::Entry::operator=(Entry&& other) noexcept {
    key = std::move(other.key);
    hash = other.hash;
    soft_lease_end = other.soft_lease_end;
    soft_leased_in = other.soft_leased_in;
    place = other.place;
    used.store(other.used.load(std::memory_order_relaxed), std::memory_order_relaxed);
    return *this;
}

LeaseCache::LeaseCache(size_t entries_max) : entries_max_(std::max<size_t>(entries_max, 1)), changed_at_(kChangeBuckets) {}

uint64_t LeaseCache::hash_of(std::string_view key) noexcept { return hash_bytes(std::as_bytes(std::span(key))); }

uint32_t LeaseCache::lookup(std::string_view key, uint64_t hash) const {
    return index_.find(hash, [&](uint32_t number) MC_NO_THREAD_ANALYSIS { return entries_[number].key == key; });
}

template <typename Visit>
void LeaseCache::find_each(std::span<const std::string_view> keys, Visit&& visit) const {
    std::array<uint64_t, kAhead> hashes;
    for (size_t from = 0; from < keys.size(); from += kAhead) {
        const size_t count = std::min(kAhead, keys.size() - from);
        for (size_t i = 0; i < count; ++i) {
            hashes[i] = hash_of(keys[from + i]);
            index_.prefetch(hashes[i]);
        }
        if (count > 1)
            for (size_t i = 0; i < count; ++i)
                if (const uint32_t number = index_.guess(hashes[i]); number != 0) prefetch(&entries_[number]);
        for (size_t i = 0; i < count; ++i)
            if (const uint32_t number = lookup(keys[from + i], hashes[i]); number != 0) visit(from + i, entries_[number]);
    }
}

size_t LeaseCache::find(std::span<const std::string_view> keys, Time now, std::span<Place> places) const {
    size_t found = 0;
    ReadLock lock(mutex_);
    find_each(keys, [&](size_t i, const Entry& entry) {
        if (!entry.place || entry.place.lease_end <= now) return;
        places[i] = entry.place;
        if (!entry.used.load(std::memory_order_relaxed)) entry.used.store(true, std::memory_order_relaxed);
        ++found;
    });
    return found;
}

size_t LeaseCache::find_existing(std::span<const std::string_view> keys, Time now, std::span<int32_t> results) const {
    size_t found = 0;
    ReadLock lock(mutex_);
    const uint64_t era = soft_lease_era_;
    find_each(keys, [&](size_t i, const Entry& entry) {
        const bool soft_leased = entry.soft_lease_end > now && entry.soft_leased_in == era;
        if (!soft_leased) return;
        results[i] = 1;
        if (!entry.used.load(std::memory_order_relaxed)) entry.used.store(true, std::memory_order_relaxed);
        ++found;
    });
    return found;
}

LeaseCache::Entry* LeaseCache::entry_for(std::string_view key, uint64_t hash, Time now) {
    if (const uint32_t number = lookup(key, hash); number != 0) return &entries_[number];
    if (entries_.size() >= entries_max_) make_room(now);
    const uint32_t number = entries_.take();
    Entry& entry = entries_[number];
    entry.key = key;
    entry.hash = hash;
    index_.insert(hash, number);
    return &entry;
}

void LeaseCache::make_room(Time now) {
    // Two rounds at the most: the first takes the marks away. Usually a few steps.
    for (size_t steps = 0; steps < 2 * static_cast<size_t>(entries_.limit()); ++steps) {
        if (++hand_ >= entries_.limit()) hand_ = 1;
        const Entry& entry = entries_[hand_];
        if (entry.key.empty()) continue;
        const bool over = entry.place.lease_end <= now && entry.soft_lease_end <= now;
        if (!over && entry.used.exchange(false, std::memory_order_relaxed)) continue;
        return drop(hand_);
    }
}

void LeaseCache::remember(std::span<const std::string_view> keys, std::span<const Place> places, Ticket asked) {
    const Time now = Clock::now();
    WriteLock lock(mutex_);
    if (all_changed_at_ > asked) return;
    for (size_t i = 0; i < keys.size(); ++i) {
        if (!places[i]) continue;
        const uint64_t hash = hash_of(keys[i]);
        if (changed_since(hash, asked)) continue;
        Entry& entry = *entry_for(keys[i], hash, now);
        // An answer that was overtaken by a later one of the same life of the value knows less.
        if (entry.place.generation == places[i].generation && entry.place.lease_end > places[i].lease_end) continue;
        entry.place = places[i];
        if (soft_leases_changed_at_ > asked) continue;
        entry.soft_lease_end = std::max(entry.soft_lease_end, places[i].lease_end);
        entry.soft_leased_in = soft_lease_era_;
    }
}

void LeaseCache::remember_existing(std::span<const std::string_view> keys, std::span<const int32_t> results, Time end, Ticket asked) {
    const Time now = Clock::now();
    WriteLock lock(mutex_);
    if (all_changed_at_ > asked || soft_leases_changed_at_ > asked) return;
    for (size_t i = 0; i < keys.size(); ++i) {
        if (results[i] != 1) continue;
        const uint64_t hash = hash_of(keys[i]);
        if (changed_since(hash, asked)) continue;
        Entry& entry = *entry_for(keys[i], hash, now);
        entry.soft_lease_end = std::max(entry.soft_lease_end, end);
        entry.soft_leased_in = soft_lease_era_;
    }
}

void LeaseCache::drop(uint32_t number) {
    index_.erase(entries_[number].hash, number);
    entries_.give_back(number);
}

void LeaseCache::note_change(uint64_t hash) { changed_at_[hash % kChangeBuckets] = changes_.fetch_add(1, std::memory_order_acq_rel) + 1; }

void LeaseCache::forget(std::string_view key) { forget(std::span(&key, 1)); }

void LeaseCache::forget(std::span<const std::string_view> keys) {
    WriteLock lock(mutex_);
    for (const std::string_view key : keys) {
        const uint64_t hash = hash_of(key);
        note_change(hash);
        if (const uint32_t number = lookup(key, hash); number != 0) drop(number);
    }
}

void LeaseCache::forget_all() {
    WriteLock lock(mutex_);
    all_changed_at_ = changes_.fetch_add(1, std::memory_order_acq_rel) + 1;
    entries_ = Slab<Entry>();
    index_ = SlotIndex<4>();
    hand_ = 1;
}

void LeaseCache::forget_soft_leases() {
    WriteLock lock(mutex_);
    soft_leases_changed_at_ = changes_.fetch_add(1, std::memory_order_acq_rel) + 1;
    ++soft_lease_era_;
}

size_t LeaseCache::size() const {
    ReadLock lock(mutex_);
    return entries_.size();
}

}  // namespace mooncake::store
