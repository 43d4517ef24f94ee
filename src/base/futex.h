// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

#include "base/format.h"
#include "base/time.h"

namespace mooncake {

enum class FutexScope { kProcess, kShared };  // kShared: the word lies in memory shared between processes

/// Sleeps while `word == expected`, until woken, the deadline or a signal. Spurious returns are possible.
MC_EXPORT void futex_wait(const std::atomic<uint32_t>& word, uint32_t expected, Deadline deadline,
                          FutexScope scope = FutexScope::kProcess) noexcept;
/// Wakes every sleeper. Touches no memory: `word` may already be gone.
MC_EXPORT void futex_wake_all(const std::atomic<uint32_t>* word, FutexScope scope = FutexScope::kProcess) noexcept;

/// One step of a busy wait: tells the core, and once in a while the scheduler, that we only wait.
class SpinPause {
public:
    void operator()() noexcept;

private:
    uint32_t steps_ = 0;
};

}  // namespace mooncake
