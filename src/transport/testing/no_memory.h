// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <climits>

namespace mooncake::testing {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kCannotFailNew = true;  // `new` is theirs
#else
constexpr bool kCannotFailNew = false;
#endif

/// While one lives, `new` throws std::bad_alloc on all threads but the one that made it. In every program that links its file. One at a time.
class NoMemory {
public:
    NoMemory() noexcept;
    ~NoMemory();
    NoMemory(const NoMemory&) = delete;
    NoMemory& operator=(const NoMemory&) = delete;

    /// How often somebody asked in vain.
    static int refused() noexcept;
};

/// While one lives, `new` throws on the thread that made it, and on no other: from the `spared`-th time on, counted from 0, `refusals` times. One at
/// a time. What is refused once only is the harder case: the caller goes on, and leans on what stayed halfway.
class NoMemoryHere {
public:
    explicit NoMemoryHere(int spared, int refusals = INT_MAX) noexcept;
    ~NoMemoryHere();
    NoMemoryHere(const NoMemoryHere&) = delete;
    NoMemoryHere& operator=(const NoMemoryHere&) = delete;

    /// Whether this thread asked in vain.
    static bool refused() noexcept;
};

}  // namespace mooncake::testing
