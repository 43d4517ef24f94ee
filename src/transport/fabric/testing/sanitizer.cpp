// SPDX-License-Identifier: Apache-2.0
// libfabric is not built for ThreadSanitizer, which then sees what the library reads and writes but not what orders it.
#if defined(__SANITIZE_THREAD__)

extern "C" const char* __tsan_default_suppressions();  // NOLINT(bugprone-reserved-identifier): the sanitizer's name
extern "C" const char* __tsan_default_suppressions() { return "called_from_lib:libfabric.so\nrace:libfabric.so\n"; }

#endif
