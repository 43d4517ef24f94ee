// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>

#include "base/format.h"

// Clang's thread-safety analysis; nothing under other compilers.
#if defined(__clang__)
#define MC_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define MC_THREAD_ATTRIBUTE(x)
#endif
#define MC_GUARDED_BY(x) MC_THREAD_ATTRIBUTE(guarded_by(x))
#define MC_PT_GUARDED_BY(x) MC_THREAD_ATTRIBUTE(pt_guarded_by(x))
#define MC_REQUIRES(...) MC_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define MC_NO_THREAD_ANALYSIS MC_THREAD_ATTRIBUTE(no_thread_safety_analysis)
#define MC_EXCLUDES(...) MC_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))

namespace mooncake {

/// std::mutex with annotations. Works with std::condition_variable_any.
class MC_THREAD_ATTRIBUTE(capability("mutex")) Mutex {
public:
    void lock() MC_THREAD_ATTRIBUTE(acquire_capability()) { mutex_.lock(); }
    void unlock() MC_THREAD_ATTRIBUTE(release_capability()) { mutex_.unlock(); }
    bool try_lock() MC_THREAD_ATTRIBUTE(try_acquire_capability(true)) { return mutex_.try_lock(); }
    /// Tells the analysis what it cannot see: the caller holds it, under another name. Checks nothing.
    void is_held() const noexcept MC_THREAD_ATTRIBUTE(assert_capability(this)) {}

private:
    std::mutex mutex_;
};

/// A reader-writer lock with annotations, for what many threads read and few change. Readers count themselves in cache lines of their own, so
/// that they do not slow each other down; a writer looks at all of them. A waiting writer goes before new readers, unlike in
/// std::shared_mutex, where readers that overlap without end would keep it out for ever. Not recursive; unlocked by the thread that locked it.
class MC_EXPORT MC_THREAD_ATTRIBUTE(capability("mutex")) SharedMutex {
public:
    SharedMutex() = default;
    SharedMutex(const SharedMutex&) = delete;
    SharedMutex& operator=(const SharedMutex&) = delete;

    void lock() MC_THREAD_ATTRIBUTE(acquire_capability());
    void unlock() MC_THREAD_ATTRIBUTE(release_capability());
    void lock_shared() noexcept MC_THREAD_ATTRIBUTE(acquire_shared_capability());
    void unlock_shared() noexcept MC_THREAD_ATTRIBUTE(release_shared_capability());

private:
    static constexpr uint32_t kSlots = 32;
    struct alignas(64) Slot {
        std::atomic<uint32_t> readers{0};  // inside, or about to find a writer there
    };

    void leave(std::atomic<uint32_t>& readers) noexcept;

    std::array<Slot, kSlots> slots_;
    std::atomic<uint32_t> writing_{0};   // 1: a writer is inside or waits for the readers; new ones sleep here
    std::atomic<uint32_t> sleeping_{0};  // readers that do
    std::mutex writers_;
};

class MC_THREAD_ATTRIBUTE(scoped_lockable) Lock {
public:
    explicit Lock(Mutex& mutex) MC_THREAD_ATTRIBUTE(acquire_capability(mutex)) : mutex_(mutex) { mutex_.lock(); }
    ~Lock() MC_THREAD_ATTRIBUTE(release_capability()) { mutex_.unlock(); }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

private:
    Mutex& mutex_;
};

class MC_THREAD_ATTRIBUTE(scoped_lockable) WriteLock {
public:
    explicit WriteLock(SharedMutex& mutex) MC_THREAD_ATTRIBUTE(acquire_capability(mutex)) : mutex_(mutex) { mutex_.lock(); }
    ~WriteLock() MC_THREAD_ATTRIBUTE(release_capability()) { mutex_.unlock(); }
    WriteLock(const WriteLock&) = delete;
    WriteLock& operator=(const WriteLock&) = delete;

private:
    SharedMutex& mutex_;
};

class MC_THREAD_ATTRIBUTE(scoped_lockable) ReadLock {
public:
    explicit ReadLock(SharedMutex& mutex) MC_THREAD_ATTRIBUTE(acquire_shared_capability(mutex)) : mutex_(mutex) { mutex_.lock_shared(); }
    ~ReadLock() MC_THREAD_ATTRIBUTE(release_capability()) { mutex_.unlock_shared(); }
    ReadLock(const ReadLock&) = delete;
    ReadLock& operator=(const ReadLock&) = delete;

private:
    SharedMutex& mutex_;
};

}  // namespace mooncake
