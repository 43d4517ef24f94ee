// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "base/error.h"

namespace mooncake {

/// As people answer: true, false, t, f, yes, no, y, n, on, off, 1, 0; any case. kInvalidArgument for anything else.
Result<bool> parse_switch(std::string_view text);

}  // namespace mooncake
