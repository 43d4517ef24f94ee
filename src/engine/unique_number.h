// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

namespace mooncake {

/// One that was never given before in this process, and not 0: the number of a state of something, so that what a thread remembers of that state
/// is not taken for one of another thing that has its place in memory now.
inline uint64_t unique_number() noexcept {
    static constinit std::atomic<uint64_t> last{0};
    return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace mooncake
