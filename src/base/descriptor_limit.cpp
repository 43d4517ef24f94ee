// SPDX-License-Identifier: Apache-2.0
#include "base/descriptor_limit.h"

#include <sys/resource.h>

namespace mooncake {

void raise_descriptor_limit() noexcept {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
    limit.rlim_cur = limit.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace mooncake
