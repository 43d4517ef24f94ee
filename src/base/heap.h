// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace mooncake {

/// Gives the pages that the heap keeps for later back to the system. Looks at all that is free in it, which may take some milliseconds for
/// each 100 MiB and holds up who allocates meanwhile: only after much was freed. Thread-safe.
void return_free_memory() noexcept;
/// How often that was done by this process.
uint64_t free_memory_returns() noexcept;

/// Watches the number of things that take memory, and says when so many have gone that return_free_memory() is worth it: at least half of
/// the most there were since the last time, and no fewer than `least`. Not thread-safe.
class ShrinkWatch {
public:
    explicit ShrinkWatch(size_t least) : least_(least) {}

    bool shrunk(size_t count) noexcept {
        most_ = std::max(most_, count);
        if (count > most_ / 2 || most_ - count < least_) return false;
        most_ = count;
        return true;
    }

private:
    const size_t least_;
    size_t most_ = 0;
};

}  // namespace mooncake
