// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

#include "base/error.h"

namespace mooncake {

/// What the program is told after the name of its command. Each returns its exit status; an error's text is for the user.
Result<int> run_proxy(std::span<const std::string> arguments);
Result<int> run_simulate(std::span<const std::string> arguments);

}  // namespace mooncake
