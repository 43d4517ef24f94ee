// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>

#include <mutex>

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

/// A reader-writer lock with annotations. A waiting writer goes before new readers, unlike in std::shared_mutex, where readers
/// that overlap without end would keep it out for ever. Not recursive.
class MC_THREAD_ATTRIBUTE(capability("mutex")) SharedMutex {
public:
    SharedMutex() = default;
    ~SharedMutex() { pthread_rwlock_destroy(&lock_); }
    SharedMutex(const SharedMutex&) = delete;
    SharedMutex& operator=(const SharedMutex&) = delete;

    void lock() MC_THREAD_ATTRIBUTE(acquire_capability()) { pthread_rwlock_wrlock(&lock_); }
    void unlock() MC_THREAD_ATTRIBUTE(release_capability()) { pthread_rwlock_unlock(&lock_); }
    void lock_shared() MC_THREAD_ATTRIBUTE(acquire_shared_capability()) { pthread_rwlock_rdlock(&lock_); }
    void unlock_shared() MC_THREAD_ATTRIBUTE(release_shared_capability()) { pthread_rwlock_unlock(&lock_); }

private:
    pthread_rwlock_t lock_ = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
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
