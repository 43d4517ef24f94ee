// SPDX-License-Identifier: Apache-2.0
// libfabric is not built for ThreadSanitizer, which then sees what the library reads and writes but not what orders it.
#if defined(__SANITIZE_THREAD__)

// NOLINTNEXTLINE(bugprone-reserved-identifier): the sanitizer's name; it looks for it from its own library, so it must not be hidden
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_suppressions() {
    // At the end of the process it unlocks a mutex that it destroyed before.
    return "called_from_lib:libfabric.so\nrace:libfabric.so\nmutex:_dl_call_fini\n";
}

#endif

// libfabric 1.17 keeps a description for ever of every connection that it accepted.
#if defined(__SANITIZE_ADDRESS__)

// NOLINTNEXTLINE(bugprone-reserved-identifier): as above
extern "C" __attribute__((visibility("default"))) const char* __lsan_default_suppressions() { return "leak:libfabric.so\n"; }

#endif
