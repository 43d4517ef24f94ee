// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace mooncake {

/// The last memory of the process, for the work that must not stop halfway. It is only an address range: pages that nobody has touched cost
/// nothing. When `new` finds no memory, the range is given up piece by piece instead of throwing. Work that makes the process grow asks
/// whole() first and is refused if it is not; everything else goes on with what was given up. Thread-safe.
class MemoryReserve {
public:
    /// From now on, for the life of the process. Later calls do nothing.
    static void keep(size_t bytes);
    /// Whether all of it is there; takes back what was given up if that can be had. Costs a load as long as nothing was. Where nothing is
    /// kept: true.
    static bool whole() noexcept;
};

}  // namespace mooncake
