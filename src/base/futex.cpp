// SPDX-License-Identifier: Apache-2.0
#include "base/futex.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace mooncake {

namespace {

int operation(int base, FutexScope scope) noexcept { return scope == FutexScope::kProcess ? base | FUTEX_PRIVATE_FLAG : base; }

}  // namespace

void futex_wait(const std::atomic<uint32_t>& word, uint32_t expected, Deadline deadline, FutexScope scope) noexcept {
    timespec time{};
    timespec* limit = nullptr;
    if (!deadline.is_never()) {
        const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline.left()).count();
        if (left == 0) return;
        time = {.tv_sec = left / 1'000'000'000, .tv_nsec = left % 1'000'000'000};
        limit = &time;
    }
    ::syscall(SYS_futex, &word, operation(FUTEX_WAIT, scope), expected, limit, nullptr, 0);
}

void futex_wake_all(const std::atomic<uint32_t>* word, FutexScope scope) noexcept {
    ::syscall(SYS_futex, word, operation(FUTEX_WAKE, scope), INT_MAX, nullptr, nullptr, 0);
}

void SpinPause::operator()() noexcept {
    // Yielding now and then lets the thread we wait for run when there are more threads than cores.
    if (++steps_ % 64 == 0) {
        ::sched_yield();
        return;
    }
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield" ::: "memory");
#endif
}

}  // namespace mooncake
