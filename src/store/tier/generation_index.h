// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/thread_annotations.h"

namespace mooncake::store::log {

/// From the generation of a value to where the index has it: its part and the rest of its key's hash. Generations are those of masters, unique but for
/// damage; whoever asks looks at all that are found. Thread-safe. 16 bytes per slot, of which at most three quarters are used.
class GenerationIndex {
public:
    struct Place {
        uint32_t hash = 0;
        uint8_t part = 0;
        friend bool operator==(const Place&, const Place&) = default;
    };

    void add(uint64_t generation, Place place) {
        const Lock lock(mutex_);
        if ((used_ + 1) * 4 > slots_.size() * 3) grow();
        insert({generation, place, true});
        ++used_;
    }
    void remove(uint64_t generation, Place place) {
        const Lock lock(mutex_);
        if (slots_.empty()) return;
        const size_t mask = slots_.size() - 1;
        size_t hole = home(generation, mask);
        while (slots_[hole].used && (slots_[hole].generation != generation || slots_[hole].place != place)) hole = (hole + 1) & mask;
        if (!slots_[hole].used) return;
        // Those behind it move up, so that no search ends too early.
        for (size_t at = (hole + 1) & mask; slots_[at].used; at = (at + 1) & mask) {
            if (((at - home(slots_[at].generation, mask)) & mask) < ((at - hole) & mask)) continue;
            slots_[hole] = slots_[at];
            hole = at;
        }
        slots_[hole] = {};
        --used_;
    }
    std::vector<Place> find(uint64_t generation) const {
        std::vector<Place> found;
        const Lock lock(mutex_);
        if (slots_.empty()) return found;
        const size_t mask = slots_.size() - 1;
        for (size_t at = home(generation, mask); slots_[at].used; at = (at + 1) & mask)
            if (slots_[at].generation == generation) found.push_back(slots_[at].place);
        return found;
    }
    size_t memory_bytes() const {
        const Lock lock(mutex_);
        return slots_.capacity() * sizeof(Slot);
    }

private:
    static constexpr size_t kFirstSlots = 64;
    struct Slot {
        uint64_t generation = 0;
        Place place;
        bool used = false;
    };

    static size_t home(uint64_t generation, size_t mask) noexcept {
        return static_cast<size_t>((generation * 0x9e3779b97f4a7c15) >> 24) & mask;
    }
    void insert(const Slot& slot) MC_REQUIRES(mutex_) {
        const size_t mask = slots_.size() - 1;
        size_t at = home(slot.generation, mask);
        while (slots_[at].used) at = (at + 1) & mask;
        slots_[at] = slot;
    }
    void grow() MC_REQUIRES(mutex_) {
        std::vector<Slot> before(slots_.empty() ? kFirstSlots : slots_.size() * 2);
        before.swap(slots_);
        for (const Slot& slot : before)
            if (slot.used) insert(slot);
    }

    mutable Mutex mutex_;
    std::vector<Slot> slots_ MC_GUARDED_BY(mutex_);  // open addressing, a power of two of them
    size_t used_ MC_GUARDED_BY(mutex_) = 0;
};

}  // namespace mooncake::store::log
