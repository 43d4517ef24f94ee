// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "store/allocation/index_list.h"
#include "store/master/object.h"

namespace mooncake::store {

/// Which values are gone for good although a node may still report them: one that was away, or not yet heard of by a new master, when they
/// were removed or replaced. Values are told by their rank (Generations::rank()), tenants by the hash of their name, since they come and go.
/// Remembers the latest kKeysMax keys, by hash; of those before them only the highest rank: whatever is lower and
/// not known otherwise is taken for gone. That, and a hash that two keys share, may cost a miss. Its memory (32 MiB, of which only what is used is touched) is
/// there from the beginning: whoever removes keys because there is none left needs no more for it. Not thread-safe.
class Tombstones {
    struct Tombstone {
        uint64_t key_hash = 0, rank = 0;
        Links order;
    };
    struct Free {
        void operator()(uint32_t* memory) const noexcept { std::free(memory); }
    };
    auto links() noexcept {
        return [this](uint32_t number) -> Links& { return tombstones_[number].order; };
    }

public:
    static constexpr size_t kKeysMax = 1 << 20;
    static constexpr size_t kPatternsMax = 64;
    static constexpr size_t kPatternsCostMax =
        8192;  // of all together, in whatever their callers count: a report is held against each of them
    static constexpr size_t kTenantsMax = 1024;
    static constexpr size_t kEndedMax = 1 << 16;  // writes that ended after a removal which they had begun before

    struct Pattern {
        uint64_t number = 0;  // they are numbered without gaps
        uint64_t tenant = 0;
        std::function<bool(std::string_view key)> matches;
        uint64_t rank = 0;
        size_t cost = 0;
    };
    /// What is known of one key already: whether it matches the patterns of these numbers, by the bits of the mask.
    struct Matched {
        uint64_t first = 0;
        size_t count = 0;
        uint64_t mask = 0;
    };
    static_assert(kPatternsMax <= 64);

    Tombstones() : index_(static_cast<uint32_t*>(std::calloc(kSlots, sizeof(uint32_t)))) {
        if (!index_) throw std::bad_alloc();
        tombstones_.reserve(kKeysMax + 1);
        tombstones_.emplace_back();  // 0 means none
    }

    /// Values of that key with a lower rank.
    void leave(uint64_t key_hash, uint64_t rank) noexcept {
        uint32_t number = index_[find(key_hash)];
        if (number != 0) {  // among the latest again
            latest_.erase(number, links());
        } else {
            number = take();
            tombstones_[number].key_hash = key_hash;
            index_[find(key_hash)] = number;
        }
        tombstones_[number].rank = rank;
        latest_.push_back(number, links());
    }
    /// Values of all keys of a tenant, or of all tenants (0). Of more than kTenantsMax the oldest then stands for all.
    void leave_for_all(uint64_t tenant, uint64_t rank) {
        raise(tenant, rank);
        if (all_below_.size() <= kTenantsMax) return;
        auto oldest = all_below_.end();
        for (auto one = all_below_.begin(); one != all_below_.end(); ++one)
            if (one->first != 0 && (oldest == all_below_.end() || one->second < oldest->second)) oldest = one;
        const uint64_t below = oldest->second;
        all_below_.erase(oldest);
        raise(0, below);
    }

    /// The same for keys that match. Of more than kPatternsMax, or kPatternsCostMax, the oldest then stand for all keys.
    void leave_for_matching(uint64_t tenant, std::function<bool(std::string_view key)> matches, uint64_t rank, size_t cost = 1) {
        patterns_.push_back({next_pattern_++, tenant, std::move(matches), rank, cost});
        patterns_cost_ += cost;
        removed_below_ = std::max(removed_below_, rank);
        while (patterns_.size() > kPatternsMax || patterns_cost_ > kPatternsCostMax) {
            leave_for_all(patterns_.front().tenant, patterns_.front().rank);
            patterns_cost_ -= patterns_.front().cost;
            patterns_.pop_front();
        }
    }
    std::vector<Pattern> patterns() const { return {patterns_.begin(), patterns_.end()}; }
    bool has_patterns() const noexcept { return !patterns_.empty(); }
    /// Somebody removes many keys, of values with a lower rank: whatever ends from now on is none of them.
    void begin_removal(uint64_t rank) noexcept { removed_below_ = std::max(removed_below_, rank); }
    /// Whether a write ended only after a removal of many keys had begun, with begin_removal().
    bool outlives(uint64_t rank, uint64_t removal) const { return end_of(rank) >= removal; }
    /// A write ends, by now: if it has outlived a removal of many keys it is none of what that removed, though it began before. (A removal of its key
    /// alone would have ended it.)
    void ended(uint64_t rank, uint64_t now) {
        if (rank >= removed_below_) [[likely]]
            return;
        ended_[rank] = now;
        if (ended_.size() > kEndedMax) ended_.erase(ended_.begin());  // which may cost a miss
    }

    /// `matched`: what was found out before.
    bool covers_matching(uint64_t tenant, std::string_view key, uint64_t rank, const Matched& matched) const {
        if (patterns_.empty()) return false;
        const uint64_t end = end_of(rank);
        return std::any_of(patterns_.begin(), patterns_.end(), [&](const Pattern& one) {
            if (end >= one.rank || (one.tenant != 0 && one.tenant != tenant)) return false;
            const uint64_t bit = one.number - matched.first;
            return bit < matched.count ? (matched.mask >> bit & 1) != 0 : one.matches(key);
        });
    }
    bool covers_matching(uint64_t tenant, std::string_view key, uint64_t rank) const { return covers_matching(tenant, key, rank, {}); }
    bool covers(uint64_t tenant, uint64_t key_hash, uint64_t rank) const {
        if (const uint32_t number = index_[find(key_hash)]; number != 0 && rank < tombstones_[number].rank) return true;
        if (all_below_.empty()) return false;
        const uint64_t end = end_of(rank);
        for (const uint64_t one : {uint64_t{0}, tenant})
            if (const auto found = all_below_.find(one); found != all_below_.end() && end < found->second) return true;
        return false;
    }
    /// Whether a tombstone that covered this may have been forgotten.
    bool forgot(uint64_t rank) const noexcept { return rank < forgotten_below_; }
    size_t size() const noexcept { return latest_.size(); }

private:
    static constexpr unsigned kSlotBits = 21;
    static constexpr size_t kSlots = size_t{1} << kSlotBits;  // at most half of them are used
    static_assert(kSlots == 2 * kKeysMax);

    void raise(uint64_t tenant, uint64_t rank) {
        uint64_t& below = all_below_[tenant];
        below = std::max(below, rank);
        removed_below_ = std::max(removed_below_, rank);
    }
    /// Whoever counts what was removed together counts from then on.
    uint64_t end_of(uint64_t rank) const {
        const auto found = ended_.find(rank);
        return found == ended_.end() ? rank : found->second;
    }
    static size_t home(uint64_t key_hash) noexcept { return (key_hash * 0x9e3779b97f4a7c15) >> (64 - kSlotBits); }
    static size_t after(size_t slot) noexcept { return (slot + 1) % kSlots; }
    /// Where that key is, or would be.
    size_t find(uint64_t key_hash) const noexcept {
        size_t slot = home(key_hash);
        while (index_[slot] != 0 && tombstones_[index_[slot]].key_hash != key_hash) slot = after(slot);
        return slot;
    }
    /// A number for another key: a new one, or that of the oldest, which is forgotten.
    uint32_t take() noexcept {
        if (tombstones_.size() <= kKeysMax) {
            tombstones_.emplace_back();
            return static_cast<uint32_t>(tombstones_.size() - 1);
        }
        const uint32_t oldest = latest_.first();
        latest_.erase(oldest, links());
        forgotten_below_ = std::max(forgotten_below_, tombstones_[oldest].rank);
        empty(find(tombstones_[oldest].key_hash));
        return oldest;
    }
    /// What was put behind this slot because it was taken moves up.
    void empty(size_t slot) noexcept {
        for (size_t next = after(slot); index_[next] != 0; next = after(next)) {
            const size_t wanted = home(tombstones_[index_[next]].key_hash);
            if ((next - wanted) % kSlots < (next - slot) % kSlots) continue;  // it lies between its home and here
            index_[slot] = index_[next];
            slot = next;
        }
        index_[slot] = 0;
    }

    std::vector<Tombstone> tombstones_;        // by number; never reallocated
    std::unique_ptr<uint32_t[], Free> index_;  // numbers, by the hash of their keys: open addressing
    IndexList latest_;                         // oldest first
    uint64_t forgotten_below_ = 0;
    std::unordered_map<uint64_t, uint64_t> all_below_;
    std::deque<Pattern> patterns_;  // oldest first
    uint64_t next_pattern_ = 0;     // its number
    size_t patterns_cost_ = 0;
    uint64_t removed_below_ = 0;          // the highest rank of those, ever
    std::map<uint64_t, uint64_t> ended_;  // by the rank of a write: what the next one had when it ended
};

}  // namespace mooncake::store
