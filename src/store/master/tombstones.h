// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
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
/// were removed or replaced. Remembers the latest kKeysMax keys, by hash; of those before them only the latest generation: whatever is older and
/// not known otherwise is taken for gone. That, and a hash that two keys share, may cost a miss. Its memory (32 MiB, of which only what is used is touched) is
/// there from the beginning: whoever removes keys because there is none left needs no more for it. Not thread-safe.
class Tombstones {
    struct Tombstone {
        uint64_t key_hash = 0, generation = 0;
        Links order;
    };
    struct Pattern {
        TenantNumber tenant = 0;
        std::function<bool(std::string_view key)> matches;
        uint64_t generation = 0;
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

    Tombstones() : index_(static_cast<uint32_t*>(std::calloc(kSlots, sizeof(uint32_t)))) {
        if (!index_) throw std::bad_alloc();
        tombstones_.reserve(kKeysMax + 1);
        tombstones_.emplace_back();  // 0 means none
    }

    /// Values of that key with a lower generation.
    void leave(uint64_t key_hash, uint64_t generation) noexcept {
        uint32_t number = index_[find(key_hash)];
        if (number != 0) {  // among the latest again
            latest_.erase(number, links());
        } else {
            number = take();
            tombstones_[number].key_hash = key_hash;
            index_[find(key_hash)] = number;
        }
        tombstones_[number].generation = generation;
        latest_.push_back(number, links());
    }
    /// Of a tenant, or of all (0).
    void leave_for_all(TenantNumber tenant, uint64_t generation) { all_below_[tenant] = generation; }

    /// The same for keys that match. Of more than kPatternsMax the oldest then stands for all keys.
    void leave_for_matching(TenantNumber tenant, std::function<bool(std::string_view key)> matches, uint64_t generation) {
        patterns_.push_back({tenant, std::move(matches), generation});
        if (patterns_.size() <= kPatternsMax) return;
        uint64_t& below = all_below_[patterns_.front().tenant];
        below = std::max(below, patterns_.front().generation);
        patterns_.pop_front();
    }

    bool covers_matching(TenantNumber tenant, std::string_view key, uint64_t generation) const {
        return std::any_of(patterns_.begin(), patterns_.end(), [&](const Pattern& one) {
            return generation < one.generation && (one.tenant == 0 || one.tenant == tenant) && one.matches(key);
        });
    }
    bool covers(TenantNumber tenant, uint64_t key_hash, uint64_t generation) const {
        if (const uint32_t number = index_[find(key_hash)]; number != 0 && generation < tombstones_[number].generation) return true;
        for (const TenantNumber one : {TenantNumber{0}, tenant})
            if (const auto found = all_below_.find(one); found != all_below_.end() && generation < found->second) return true;
        return false;
    }
    /// Whether a tombstone that covered this may have been forgotten.
    bool forgot(uint64_t generation) const noexcept { return generation < forgotten_below_; }
    size_t size() const noexcept { return latest_.size(); }

private:
    static constexpr unsigned kSlotBits = 21;
    static constexpr size_t kSlots = size_t{1} << kSlotBits;  // at most half of them are used
    static_assert(kSlots == 2 * kKeysMax);

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
        forgotten_below_ = std::max(forgotten_below_, tombstones_[oldest].generation);
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
    std::unordered_map<TenantNumber, uint64_t> all_below_;
    std::deque<Pattern> patterns_;  // oldest first
};

}  // namespace mooncake::store
