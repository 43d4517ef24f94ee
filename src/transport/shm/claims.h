// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <type_traits>

#include "base/futex.h"

namespace mooncake::shm {

/// Through which one peer shows the owner of a region table what it is copying: a page that both have mapped. A copy opens a Section,
/// claims every entry before it asks whether that is live, and copies. The owner first withdraws an entry and then waits: when wait_for()
/// returns true, every Section that may have seen the entry live is over. Copies that touch other entries are not waited for.
///
/// Thread-safe; plain atomics without pointers. At most kSlots Sections are open at once, further threads spin until one ends; so
/// they must be short, and none may be opened inside another. The other side can write anything into the page: who must not depend on it says
/// how long it waits.
class Claims {
public:
    static constexpr uint32_t kSlots = 64;
    static constexpr uint32_t kWords = 7;
    /// Entries whose numbers differ by a multiple of this are not told apart: the owner may wait for a copy that it need not wait for.
    static constexpr uint32_t kEntries = kWords * 64;

    class Section {
    public:
        explicit Section(Claims& owner)
            : Section(owner, [pause = SpinPause()]() mutable {
                  pause();
                  return true;
              }) {}
        /// Asks before each further look whether to go on waiting for a slot. If not, it is not open: nothing may be claimed.
        template <typename KeepWaiting>
        Section(Claims& owner, KeepWaiting&& keep_waiting) : owner_(owner), slot_(owner.take_slot()) {
            while (slot_ == kSlots && keep_waiting()) slot_ = owner.take_slot();
        }
        ~Section() {
            if (open()) owner_.leave(slot_);
        }
        Section(const Section&) = delete;
        Section& operator=(const Section&) = delete;

        bool open() const noexcept { return slot_ != kSlots; }
        /// Before the entry's state is read, with seq_cst.
        void claim(uint32_t entry) noexcept {
            std::atomic<uint64_t>& word = owner_.slots_[slot_].claimed[word_of(entry)];
            if (first_) owner_.slots_[slot_].forget_other_claims(entry);
            first_ = false;
            if ((word.load(std::memory_order_relaxed) & bit_of(entry)) == 0) word.fetch_or(bit_of(entry), std::memory_order_seq_cst);
        }

    private:
        Claims& owner_;
        uint32_t slot_;
        bool first_ = true;  // claim of this Section
    };

    /// Waits for the end of the Sections open now that claim the entry. False at the deadline: then some of them still run.
    bool wait_for(uint32_t entry, Deadline deadline) noexcept;
    /// As wait_for(), for all Sections.
    bool wait_for_all(Deadline deadline) noexcept;
    /// Ends the Sections of a process that died inside them.
    void abandon() noexcept;

private:
    friend class Section;
    struct alignas(64) Slot {
        std::atomic<uint32_t> sequence{0};  // odd: a Section is open
        std::atomic<uint32_t> waiters{0};
        /// One bit per entry; those of the last Section stay until the next one claims something. Who sees them waits for that one; that is all.
        /// Mostly it claims the same, and then it need not say so again.
        std::array<std::atomic<uint64_t>, kWords> claimed{};

        /// Unless there are none. It may take several for one, which are then forgotten later.
        void forget_other_claims(uint32_t entry) noexcept {
            uint64_t sum = 0;
            for (const std::atomic<uint64_t>& word : claimed) sum += word.load(std::memory_order_relaxed);
            if (sum == bit_of(entry)) return;
            for (std::atomic<uint64_t>& word : claimed)
                if (word.load(std::memory_order_relaxed) != 0) word.store(0, std::memory_order_relaxed);
        }
    };

    static uint32_t word_of(uint32_t entry) noexcept { return entry % kEntries / 64; }
    static uint64_t bit_of(uint32_t entry) noexcept { return uint64_t{1} << entry % 64; }
    /// kSlots: none is free.
    uint32_t take_slot() noexcept;
    void leave(uint32_t slot) noexcept;
    static bool wait_for(Slot& slot, uint32_t sequence, Deadline deadline) noexcept;

    std::array<Slot, kSlots> slots_;
};
static_assert(std::is_standard_layout_v<Claims> && sizeof(Claims) == 4096);

}  // namespace mooncake::shm
