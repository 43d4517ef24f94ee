// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/error.h"
#include "base/prefetch.h"

namespace mooncake::store {

/// Finds the number of a record by the hash of its key; the keys themselves stay in the records. 8 bytes per entry at 50-75 % load, which
/// may fall to 20 % before memory is given back. Open addressing, linear probing, no tombstones. Split by the top bits of the hash into
/// shards that grow and shrink one at a time, so that it never stops the caller for long. Not thread-safe. The caller sees to it that no
/// key is in twice.
template <unsigned kShardBits>
class SlotIndex {
public:
    /// The record with this hash for which `equal(number)` holds; 0 if there is none.
    template <typename Equal>
    uint32_t find(uint64_t hash, Equal&& equal) const {
        const Shard& shard = shard_of(hash);
        if (shard.entries.empty()) return 0;
        const auto tag = static_cast<uint32_t>(hash);
        for (size_t at = shard.home(tag);; at = shard.after(at)) {
            const Entry entry = shard.entries[at];
            if (entry.number == 0) return 0;
            if (entry.tag == tag && equal(entry.number)) return entry.number;
        }
    }
    /// The first number whose tag matches, without looking at keys: for prefetching.
    uint32_t guess(uint64_t hash) const {
        return find(hash, [](uint32_t) { return true; });
    }
    void prefetch(uint64_t hash) const {
        const Shard& shard = shard_of(hash);
        if (!shard.entries.empty()) mooncake::prefetch(&shard.entries[shard.home(static_cast<uint32_t>(hash))]);
    }

    void insert(uint64_t hash, uint32_t number) {
        Shard& shard = shard_of(hash);
        if ((shard.size + 1) * 100 > shard.entries.size() * 75) shard.grow();
        shard.place({.tag = static_cast<uint32_t>(hash), .number = number});
        ++shard.size;
    }
    void erase(uint64_t hash, uint32_t number) {
        Shard& shard = shard_of(hash);
        MC_CHECK(!shard.entries.empty());
        size_t at = shard.home(static_cast<uint32_t>(hash));
        while (shard.entries[at].number != number) {
            MC_CHECK(shard.entries[at].number != 0);
            at = shard.after(at);
        }
        shard.close_gap(at);
        --shard.size;
        if (shard.entries.size() > kShrinkMin && shard.size * 5 < shard.entries.size()) shard.resize(shard.entries.size() / 2);
    }

    size_t size() const noexcept {
        size_t total = 0;
        for (const Shard& shard : shards_) total += shard.size;
        return total;
    }
    /// How many entries the longest search for one of them looks at; for tests, linear.
    size_t longest_search() const {
        size_t longest = 0;
        for (const Shard& shard : shards_)
            for (size_t at = 0; at < shard.entries.size(); ++at)
                if (shard.entries[at].number != 0) longest = std::max(longest, shard.distance(shard.home(shard.entries[at].tag), at) + 1);
        return longest;
    }
    size_t memory_bytes() const noexcept {
        size_t total = sizeof(*this);
        for (const Shard& shard : shards_) total += shard.entries.capacity() * sizeof(Entry);
        return total;
    }

private:
    static constexpr size_t kShrinkMin = 1024;  // entries of a shard: less is not worth giving back

    struct Entry {
        uint32_t tag = 0, number = 0;  // number 0: empty
    };
    struct Shard {
        std::vector<Entry> entries;
        size_t size = 0;

        // Any capacity will do, not only powers of two: growth can be gentle.
        size_t home(uint32_t tag) const { return static_cast<size_t>((uint64_t{tag} * entries.size()) >> 32); }
        size_t after(size_t at) const { return at + 1 == entries.size() ? 0 : at + 1; }
        size_t distance(size_t from, size_t to) const { return to >= from ? to - from : to + entries.size() - from; }
        void place(Entry entry) {
            size_t at = home(entry.tag);
            while (entries[at].number != 0) at = after(at);
            entries[at] = entry;
        }
        void grow() { resize(entries.empty() ? 16 : entries.size() + entries.size() / 2); }
        void resize(size_t capacity) {
            std::vector<Entry> old(capacity);
            old.swap(entries);
            for (const Entry& entry : old)
                if (entry.number != 0) place(entry);
        }
        /// Empties `gap`, moving back whatever was displaced over it.
        void close_gap(size_t gap) {
            for (size_t at = after(gap); entries[at].number != 0; at = after(at)) {
                const size_t wanted = home(entries[at].tag);
                const bool reachable = gap <= at ? wanted <= gap || wanted > at : wanted <= gap && wanted > at;
                if (!reachable) continue;
                entries[gap] = entries[at];
                gap = at;
            }
            entries[gap] = {};
        }
    };

    static size_t shard_number(uint64_t hash) {
        if constexpr (kShardBits == 0) return 0;
        else return static_cast<size_t>(hash >> (64 - kShardBits));
    }
    Shard& shard_of(uint64_t hash) { return shards_[shard_number(hash)]; }
    const Shard& shard_of(uint64_t hash) const { return shards_[shard_number(hash)]; }

    std::array<Shard, size_t{1} << kShardBits> shards_;
};

}  // namespace mooncake::store
