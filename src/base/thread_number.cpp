// SPDX-License-Identifier: Apache-2.0
#include "base/thread_number.h"

#include <pthread.h>

#include <array>
#include <atomic>
#include <cstddef>

namespace mooncake {

namespace {

/// A thread's own number. Constant once given, and still there while the thread's other variables are destroyed.
struct Mine {
    uint32_t number = 0;  // 0: none yet
    uint32_t misses = 0;
    bool leaving = false;
};
constinit thread_local Mine mine;
constinit std::atomic<uint32_t> next_number{1};

/// A transfer asks for the number a dozen times, and in a shared library a variable of the thread is found by a call each time. So numbers of
/// living threads are found by the address that differs between them, which the processor knows, as well. A word holds that address, and in the
/// bits that it leaves free the number; threads whose addresses have the same place share a word.
constexpr size_t kWords = 1024;
constexpr unsigned kNumberBits = 23, kAlignBits = 6, kAddressBits = 47;
static_assert(kAddressBits - kAlignBits + kNumberBits == 64);
constinit std::array<std::atomic<uint64_t>, kWords> known{};

size_t place_of(uint64_t self) noexcept { return self * 0x9e3779b97f4a7c15 >> 54; }
static_assert(kWords == size_t{1} << (64 - 54));

constexpr uint64_t shifted(uint64_t self) noexcept { return self << (kNumberBits - kAlignBits); }

/// Before the thread ends, as the next one may live at the same address.
struct Forgetting {
    uint64_t self = 0;
    ~Forgetting() {
        mine.leaving = true;
        uint64_t word = shifted(self) | mine.number;
        known[place_of(self)].compare_exchange_strong(word, 0, std::memory_order_relaxed);
    }
};

/// In a child process only the thread lives that made it, and others may come where those of the parent were.
void forget_parents_threads() noexcept {
    for (std::atomic<uint64_t>& word : known) word.store(0, std::memory_order_relaxed);
    mine.misses = 0;
}
[[maybe_unused]] const int installed = ::pthread_atfork(nullptr, nullptr, &forget_parents_threads);

[[gnu::noinline]] uint32_t find_number(uint64_t self) noexcept {
    Mine& me = mine;
    while (me.number == 0) me.number = next_number.fetch_add(1, std::memory_order_relaxed) % (1 << kNumberBits);
    const bool fits = self != 0 && self % (1 << kAlignBits) == 0 && self >> kAddressBits == 0;
    // Threads that share a word must not take it from each other all the time.
    constexpr uint32_t kMissesPerTry = 4096;
    if (!fits || me.leaving || me.misses++ % kMissesPerTry != 0) return me.number;
    static thread_local Forgetting at_end;
    at_end.self = self;
    known[place_of(self)].store(shifted(self) | me.number, std::memory_order_relaxed);
    return me.number;
}

}  // namespace

uint32_t thread_number() noexcept {
    uint64_t self = 0;
#if defined(__x86_64__)
    asm("mov %%fs:0, %0" : "=r"(self));
    const uint64_t word = known[place_of(self)].load(std::memory_order_relaxed) ^ shifted(self);
    if (word < uint64_t{1} << kNumberBits) [[likely]]
        return static_cast<uint32_t>(word);
#endif
    return find_number(self);
}

}  // namespace mooncake
