// SPDX-License-Identifier: Apache-2.0
#pragma once

// What one thread writes before we answer another process comes before what a thread of ours reads because that process, or one it told, asks
// for something later, over whatever connection. That order is made where ThreadSanitizer does not see it, so it is told here. Nothing
// elsewhere. Thread-safe.
#if defined(__SANITIZE_THREAD__)
#define MC_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define MC_TSAN 1
#endif
#endif

#if defined(MC_TSAN)
extern "C" void __tsan_acquire(void* at);
extern "C" void __tsan_release(void* at);
#endif

namespace mooncake {

#if defined(MC_TSAN)
inline constinit char other_processes_clock = 0;
#endif

/// Before an answer leaves.
inline void note_answering_others() noexcept {
#if defined(MC_TSAN)
    __tsan_release(&other_processes_clock);
#endif
}

/// After something was received.
inline void note_asked_by_others() noexcept {
#if defined(MC_TSAN)
    __tsan_acquire(&other_processes_clock);
#endif
}

}  // namespace mooncake
