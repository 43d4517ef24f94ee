// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <link.h>

#include <cstdint>

namespace mooncake {

/// Grows whenever a library is loaded into this process. Looking for one that is not there searches the disk: whoever did need not look again before
/// this has changed. 0: nobody knows.
inline uint64_t library_loads() noexcept {
    uint64_t loads = 0;
    ::dl_iterate_phdr(
        [](dl_phdr_info* info, size_t, void* answer) {
            *static_cast<uint64_t*>(answer) = info->dlpi_adds;
            return 1;
        },
        &loads);
    return loads;
}

}  // namespace mooncake
