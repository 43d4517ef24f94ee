// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/time.h"

namespace mooncake::fabric {

/// What time it is, for everything that happens because time passes: stalls, connections that are not made, probes, idle paths. Tests set it by
/// hand. Thread-safe.
class TimeSource {
public:
    virtual ~TimeSource() = default;
    virtual Time now() const noexcept { return Clock::now(); }
    /// The clock of the machine.
    static const TimeSource& real() noexcept {
        static const TimeSource source;
        return source;
    }
};

}  // namespace mooncake::fabric
