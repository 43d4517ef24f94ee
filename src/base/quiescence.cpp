// SPDX-License-Identifier: Apache-2.0
#include "base/quiescence.h"

namespace mooncake {

uint32_t Quiescence::take_slot() noexcept {
    // Threads start at different slots, so that in the common case each has one to itself.
    static constinit std::atomic<uint32_t> next_thread{0};
    static thread_local const uint32_t home = next_thread.fetch_add(1, std::memory_order_relaxed) % kSlots;
    SpinPause pause;
    for (uint32_t i = home;; i = (i + 1) % kSlots) {
        uint32_t sequence = slots_[i].sequence.load(std::memory_order_relaxed);
        if (sequence % 2 == 0 && slots_[i].sequence.compare_exchange_strong(sequence, sequence + 1, std::memory_order_seq_cst)) return i;
        if ((i + 1) % kSlots == home) pause();
    }
}

bool Quiescence::wait_for(Slot& slot, Deadline deadline, FutexScope scope) noexcept {
    const uint32_t seen = slot.sequence.load(std::memory_order_seq_cst);
    if (seen % 2 == 0) return true;
    slot.waiters.fetch_add(1, std::memory_order_seq_cst);
    bool over = slot.sequence.load(std::memory_order_seq_cst) != seen;
    while (!over && !deadline.passed()) {
        futex_wait(slot.sequence, seen, deadline, scope);
        over = slot.sequence.load(std::memory_order_seq_cst) != seen;
    }
    slot.waiters.fetch_sub(1, std::memory_order_seq_cst);
    return over;
}

bool Quiescence::quiesce(Deadline deadline, FutexScope scope) noexcept {
    bool all = true;
    for (Slot& slot : slots_) all = wait_for(slot, deadline, scope) && all;
    return all;
}

void Quiescence::abandon(FutexScope scope) noexcept {
    for (uint32_t i = 0; i < kSlots; ++i)
        if (slots_[i].sequence.load(std::memory_order_seq_cst) % 2 != 0) leave(i, scope);
}

}  // namespace mooncake
