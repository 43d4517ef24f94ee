// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <type_traits>

#include "base/futex.h"

namespace mooncake {

/// How a revoker waits for accesses that take no lock. An accessor wraps each short access in a Section and asks, inside it,
/// whether what it wants to touch is still allowed. A revoker first forbids, then calls quiesce(): when that returns true,
/// every Section that may have seen the old permission is over. Permission and question must be ordered by a mutex or by
/// seq_cst accesses to one variable.
///
/// Thread-safe; at most kSlots Sections are open at once, further ones spin. Plain atomics without pointers, so it may lie in
/// memory shared between processes (then with FutexScope::kShared everywhere).
class Quiescence {
public:
    static constexpr uint32_t kSlots = 64;

    class Section {
    public:
        Section(Quiescence& owner, uint32_t slot, FutexScope scope) noexcept : owner_(owner), slot_(slot), scope_(scope) {}
        ~Section() { owner_.leave(slot_, scope_); }
        Section(const Section&) = delete;
        Section& operator=(const Section&) = delete;

    private:
        Quiescence& owner_;
        const uint32_t slot_;
        const FutexScope scope_;
    };

    Section enter(FutexScope scope = FutexScope::kProcess) noexcept { return Section(*this, take_slot(), scope); }

    /// Waits for the end of the Sections open now. False at the deadline: then some of them still run. Not inside a Section.
    bool quiesce(Deadline deadline, FutexScope scope = FutexScope::kProcess) noexcept;
    /// Ends the Sections of a process that shared this with us and died inside them.
    void abandon(FutexScope scope) noexcept;

private:
    struct alignas(64) Slot {
        std::atomic<uint32_t> sequence{0};  // odd: a Section is open
        std::atomic<uint32_t> waiters{0};
    };

    uint32_t take_slot() noexcept;
    void leave(uint32_t slot, FutexScope scope) noexcept {
        slots_[slot].sequence.fetch_add(1, std::memory_order_seq_cst);
        if (slots_[slot].waiters.load(std::memory_order_seq_cst) != 0) futex_wake_all(&slots_[slot].sequence, scope);
    }
    static bool wait_for(Slot& slot, Deadline deadline, FutexScope scope) noexcept;

    std::array<Slot, kSlots> slots_;
};
static_assert(std::is_standard_layout_v<Quiescence> && sizeof(Quiescence) == 4096);

}  // namespace mooncake
