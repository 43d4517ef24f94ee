// SPDX-License-Identifier: Apache-2.0
#include "base/version.h"

namespace mooncake {

std::string_view version() noexcept { return MC_VERSION_STRING; }

}  // namespace mooncake
