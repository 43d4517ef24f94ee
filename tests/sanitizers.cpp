// SPDX-License-Identifier: Apache-2.0
// What the sanitizers report about libfabric and not about us. In every test program: those that load the library have this in common.
// NOLINTBEGIN(bugprone-reserved-identifier): the sanitizers' names; they look for them from their own library, so these must not be hidden

// libfabric is not built for ThreadSanitizer, which then sees what the library reads and writes but not what orders it.
#if defined(__SANITIZE_THREAD__)

extern "C" __attribute__((visibility("default"))) const char* __tsan_default_suppressions() {
    // libfabric's destructor locks a mutex and, as its last act, jumps to the unlock. The first is not counted, being called from libfabric;
    // the second is, as its caller seems to be the loader: the unlock of an unlocked mutex. Its place in libfabric cannot be named
    // here (it has no symbol). Hides the like of functions with __attribute__((destructor)) only, which we have none of; destructors
    // of static objects have other callers.
    return "called_from_lib:libfabric.so\nrace:libfabric.so\nmutex:_dl_call_fini\n";
}

#endif

// libfabric 1.17 keeps for ever its own copy (fi_dupinfo) of what describes each endpoint and each connection that it accepted, and 24 bytes of
// each that it made. Without symbols the whole library must be named; that we close what we open is what the fake fabric checks.
#if defined(__SANITIZE_ADDRESS__)

extern "C" __attribute__((visibility("default"))) const char* __lsan_default_suppressions() { return "leak:libfabric.so\n"; }

#endif
// NOLINTEND(bugprone-reserved-identifier)
