// SPDX-License-Identifier: Apache-2.0
#include "store/service/contain.h"

#include "base/log.h"

namespace mooncake::store {

void log_contained(std::string_view operation, std::string_view what) noexcept {
    MC_LOG_WARNING_EVERY(1s, "{} ended unexpectedly: {}", operation, what);
}

}  // namespace mooncake::store
