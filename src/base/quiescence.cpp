// SPDX-License-Identifier: Apache-2.0
#include "base/quiescence.h"

#include <algorithm>

#include "base/thread_number.h"

namespace mooncake {

bool Quiescence::take_free(Slot& slot) noexcept {
    uint32_t state = slot.state.load(std::memory_order_relaxed);
    return (state & kOpenMask) == 0 && slot.state.compare_exchange_strong(state, state + 1, std::memory_order_seq_cst);
}

bool Quiescence::join(Slot& slot) noexcept {
    // Not where a revoker waits: Sections that overlap without end would keep its generation from ending.
    if (slot.waiters.load(std::memory_order_relaxed) != 0) return false;
    uint32_t state = slot.state.load(std::memory_order_relaxed);
    return (state & kOpenMask) != kOpenMask && slot.state.compare_exchange_strong(state, state + 1, std::memory_order_seq_cst);
}

uint32_t Quiescence::take_slot() noexcept {
    const uint32_t home = thread_number() % kSlots;
    for (SpinPause pause;; pause()) {
        for (uint32_t i = 0; i < kSlots; ++i)
            if (const uint32_t slot = (home + i) % kSlots; take_free(slots_[slot])) return slot;
        // All are taken, perhaps by Sections that last: waiting for one to end could take for ever. A revoker waits at one slot at
        // a time, so there is one to share.
        for (uint32_t i = 0; i < kSlots; ++i)
            if (const uint32_t slot = (home + i) % kSlots; join(slots_[slot])) return slot;
    }
}

bool Quiescence::wait_for(Slot& slot, Deadline deadline) noexcept {
    const uint32_t seen = slot.state.load(std::memory_order_seq_cst);
    if ((seen & kOpenMask) == 0) return true;
    slot.waiters.fetch_add(1, std::memory_order_seq_cst);
    uint32_t now = slot.state.load(std::memory_order_seq_cst);
    while (same_generation(now, seen) && !deadline.passed()) {
        futex_wait(slot.state, now, deadline);
        now = slot.state.load(std::memory_order_seq_cst);
    }
    slot.waiters.fetch_sub(1, std::memory_order_seq_cst);
    return !same_generation(now, seen);
}

Quiescence::Open Quiescence::open_now() const {
    Open sections;
    open_now(sections);
    return sections;
}

void Quiescence::open_now(Open& sections) const {
    sections.clear();
    for (uint32_t slot = 0; slot < kSlots; ++slot)
        if (const uint32_t state = slots_[slot].state.load(std::memory_order_seq_cst); (state & kOpenMask) != 0)
            sections.emplace_back(slot, state);
}

bool Quiescence::over(const Open& sections) const noexcept {
    return std::none_of(sections.begin(), sections.end(), [this](const auto& section) {
        return same_generation(slots_[section.first].state.load(std::memory_order_seq_cst), section.second);
    });
}

bool Quiescence::quiesce(Deadline deadline) noexcept {
    bool all = true;
    for (Slot& slot : slots_) all = wait_for(slot, deadline) && all;
    return all;
}

}  // namespace mooncake
