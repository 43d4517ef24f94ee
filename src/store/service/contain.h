// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string_view>
#include <utility>

namespace mooncake::store {

/// Tells the log that an operation threw; now and then where there are many.
void log_contained(std::string_view operation, std::string_view what) noexcept;

/// Runs what somebody asked for. Errors are values: what throws all the same (memory that is not there, a mistake of ours) costs this one operation,
/// not the process. The state allows that: operations throw while they decide, never while a change is applied (Transaction::apply), for which there
/// is the MemoryReserve. Returns whether it came to its end.
template <typename Work>
bool contain(std::string_view operation, Work&& work) {
    try {
        std::forward<Work>(work)();
        return true;
    } catch (const std::exception& problem) {
        log_contained(operation, problem.what());
        return false;
    }
}

/// The same as a task for a thread, which must not throw.
template <typename Work>
auto contained_task(const char* operation, Work work) {
    return [operation, work = std::move(work)] { contain(operation, work); };
}

}  // namespace mooncake::store
