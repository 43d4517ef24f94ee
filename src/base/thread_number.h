// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/format.h"

namespace mooncake {

/// The calling thread's place in the order in which threads first asked. Spreads threads over slots that each want to itself: two threads
/// share one of n slots only when more than n threads have come.
MC_EXPORT uint32_t thread_number() noexcept;

}  // namespace mooncake
