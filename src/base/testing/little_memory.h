// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>

namespace mooncake::testing {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kCannotLimitMemory = true;  // they need more addresses than anybody
#else
constexpr bool kCannotLimitMemory = false;
#endif

/// Runs it in a child process that can have only so many bytes more than this one has now. Returns its code, or minus the signal that ended it.
template <typename Body>
int in_a_process_with(size_t bytes, Body&& body) {
    const pid_t child = ::fork();
    if (child == 0) {
        size_t pages = 0;
        std::FILE* const file = std::fopen("/proc/self/statm", "r");
        if (file == nullptr || std::fscanf(file, "%zu", &pages) != 1) ::_exit(100);
        std::fclose(file);
        const rlim_t limit = pages * static_cast<size_t>(::sysconf(_SC_PAGESIZE)) + bytes;
        const rlimit limits{.rlim_cur = limit, .rlim_max = limit};
        if (::setrlimit(RLIMIT_AS, &limits) != 0) ::_exit(101);
        ::_exit(body());
    }
    int status = 0;
    if (child < 0 || ::waitpid(child, &status, 0) != child) return 102;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

}  // namespace mooncake::testing
