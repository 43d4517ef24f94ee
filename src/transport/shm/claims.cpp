// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/claims.h"

#include "base/thread_number.h"

namespace mooncake::shm {

uint32_t Claims::take_slot() noexcept {
    const uint32_t home = thread_number() % kSlots;
    for (uint32_t i = 0; i < kSlots; ++i) {
        Slot& slot = slots_[(home + i) % kSlots];
        uint32_t sequence = slot.sequence.load(std::memory_order_relaxed);
        if (sequence % 2 == 0 && slot.sequence.compare_exchange_strong(sequence, sequence + 1, std::memory_order_seq_cst))
            return (home + i) % kSlots;
    }
    return kSlots;
}

void Claims::leave(uint32_t slot) noexcept {
    slots_[slot].sequence.fetch_add(1, std::memory_order_seq_cst);
    if (slots_[slot].waiters.load(std::memory_order_seq_cst) != 0) futex_wake_all(&slots_[slot].sequence, FutexScope::kShared);
}

bool Claims::wait_for(Slot& slot, uint32_t sequence, Deadline deadline) noexcept {
    slot.waiters.fetch_add(1, std::memory_order_seq_cst);
    bool over = slot.sequence.load(std::memory_order_seq_cst) != sequence;
    while (!over && !deadline.passed()) {
        futex_wait(slot.sequence, sequence, deadline, FutexScope::kShared);
        over = slot.sequence.load(std::memory_order_seq_cst) != sequence;
    }
    slot.waiters.fetch_sub(1, std::memory_order_seq_cst);
    return over;
}

bool Claims::wait_for(uint32_t entry, Deadline deadline) noexcept {
    bool all = true;
    for (Slot& slot : slots_) {
        // The sequence first: a claim that is not there yet belongs to a Section that will find the entry withdrawn.
        const uint32_t sequence = slot.sequence.load(std::memory_order_seq_cst);
        if (sequence % 2 == 0 || (slot.claimed[word_of(entry)].load(std::memory_order_seq_cst) & bit_of(entry)) == 0) continue;
        all = wait_for(slot, sequence, deadline) && all;
    }
    return all;
}

bool Claims::wait_for_all(Deadline deadline) noexcept {
    bool all = true;
    for (Slot& slot : slots_) {
        const uint32_t sequence = slot.sequence.load(std::memory_order_seq_cst);
        if (sequence % 2 != 0) all = wait_for(slot, sequence, deadline) && all;
    }
    return all;
}

void Claims::abandon() noexcept {
    for (uint32_t i = 0; i < kSlots; ++i)
        if (slots_[i].sequence.load(std::memory_order_seq_cst) % 2 != 0) leave(i);
}

}  // namespace mooncake::shm
