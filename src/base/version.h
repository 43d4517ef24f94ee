// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "base/format.h"

namespace mooncake {

/// The version of this build as pyproject.toml names it: "1.0.0a1".
MC_EXPORT std::string_view version() noexcept;

}  // namespace mooncake
