// SPDX-License-Identifier: Apache-2.0
#include "base/thread_number.h"

#include <atomic>

namespace mooncake {

uint32_t thread_number() noexcept {
    static constinit std::atomic<uint32_t> next{0};
    static thread_local const uint32_t mine = next.fetch_add(1, std::memory_order_relaxed);
    return mine;
}

}  // namespace mooncake
