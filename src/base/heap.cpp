// SPDX-License-Identifier: Apache-2.0
#include "base/heap.h"

#include <atomic>

#ifdef __linux__
#include <malloc.h>
#endif

namespace mooncake {

namespace {
std::atomic<uint64_t> returns{0};
}

void return_free_memory() noexcept {
    returns.fetch_add(1, std::memory_order_relaxed);
#ifdef __GLIBC__
    ::malloc_trim(0);
#endif
}

uint64_t free_memory_returns() noexcept { return returns.load(std::memory_order_relaxed); }

}  // namespace mooncake
