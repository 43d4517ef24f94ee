// SPDX-License-Identifier: Apache-2.0
#include "transport/testing/no_memory.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace mooncake::testing {

namespace {

constinit std::atomic<bool> none{false};
constinit std::atomic<int> asked_in_vain{0};
constinit thread_local bool exempt = false;
constinit thread_local bool counted = false;
constinit thread_local int left_here = 0;
constinit thread_local int refusals_left = 0;

}  // namespace

NoMemory::NoMemory() noexcept {
    exempt = true;
    asked_in_vain = 0;
    none = true;
}

NoMemory::~NoMemory() {
    none = false;
    exempt = false;
}

int NoMemory::refused() noexcept { return asked_in_vain; }

NoMemoryHere::NoMemoryHere(int spared, int refusals) noexcept {
    left_here = spared;
    refusals_left = refusals;
    counted = true;
}

NoMemoryHere::~NoMemoryHere() { counted = false; }

bool NoMemoryHere::refused() noexcept { return left_here < 0; }

/// As the standard's, which the other forms of `new` call, and which goes together with its `delete`.
void* allocate(std::size_t bytes) {
    if (none.load(std::memory_order_relaxed) && !exempt) {
        ++asked_in_vain;
        throw std::bad_alloc();
    }
    if (counted && --left_here < 0 && refusals_left > 0) {
        --refusals_left;
        throw std::bad_alloc();
    }
    if (void* const memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
    throw std::bad_alloc();
}

}  // namespace mooncake::testing

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
void* operator new(std::size_t bytes) { return mooncake::testing::allocate(bytes); }
#endif
