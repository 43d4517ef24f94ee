// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/futex.h"

namespace mooncake {

/// How a revoker waits for accesses that take no lock. An accessor wraps each short access in a Section and asks, inside it,
/// whether what it wants to touch is still allowed. A revoker first forbids, then calls quiesce(): when that returns true,
/// every Section that may have seen the old permission is over. Permission and question must be ordered by a mutex or by
/// seq_cst accesses to one variable.
///
/// Thread-safe. Any number of Sections may be open at once, also several of one thread. Up to kSlots threads have a cache line
/// each; further ones share.
class Quiescence {
public:
    static constexpr uint32_t kSlots = 64;

    class Section {
    public:
        Section(Quiescence& owner, uint32_t slot) noexcept : owner_(owner), slot_(slot) {}
        ~Section() { owner_.leave(slot_); }
        Section(const Section&) = delete;
        Section& operator=(const Section&) = delete;

    private:
        Quiescence& owner_;
        const uint32_t slot_;
    };

    Section enter() noexcept { return Section(*this, take_slot()); }

    /// Waits for the end of the Sections open now. False at the deadline: then some of them still run. Not inside a Section.
    bool quiesce(Deadline deadline) noexcept;

    /// Some Sections, to be asked after later.
    using Open = std::vector<std::pair<uint32_t, uint32_t>>;  // slot and state
    Open open_now() const;
    /// The same into a list that is there. Needs no memory if that has room for kSlots of them.
    void open_now(Open& sections) const;
    /// Whether all of them are over.
    bool over(const Open& sections) const noexcept;

private:
    /// `state` is generation << 8 | open Sections. The generation moves when the last of them ends: then all that were open when a
    /// revoker looked are over, whoever has entered since.
    struct alignas(64) Slot {
        std::atomic<uint32_t> state{0};
        std::atomic<uint32_t> waiters{0};
    };
    static constexpr uint32_t kOpenMask = 0xff, kGeneration = 0x100;

    static bool same_generation(uint32_t state, uint32_t other) noexcept { return ((state ^ other) & ~kOpenMask) == 0; }

    uint32_t take_slot() noexcept;
    static bool take_free(Slot& slot) noexcept;
    static bool join(Slot& slot) noexcept;
    void leave(uint32_t slot) noexcept {
        std::atomic<uint32_t>& state = slots_[slot].state;
        uint32_t before = state.load(std::memory_order_relaxed), after = 0;
        do after = (before & kOpenMask) == 1 ? before - 1 + kGeneration : before - 1;
        while (!state.compare_exchange_weak(before, after, std::memory_order_seq_cst, std::memory_order_relaxed));
        if ((after & kOpenMask) == 0 && slots_[slot].waiters.load(std::memory_order_seq_cst) != 0) futex_wake_all(&state);
    }
    static bool wait_for(Slot& slot, Deadline deadline) noexcept;

    std::array<Slot, kSlots> slots_;
};

}  // namespace mooncake
