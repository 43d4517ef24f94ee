// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace mooncake::store {

/// Counts the steps of walks that are as long as there are others (members of a group, ranges in quarantine, writes), by this thread and
/// since ever: tests compare how it grows. Added to once per walk.
inline uint64_t& steps_walked() {
    thread_local uint64_t steps = 0;
    return steps;
}

}  // namespace mooncake::store
