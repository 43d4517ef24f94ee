// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>

#include "base/error.h"

namespace mooncake {

/// The bytes of a file that should be small. kNotFound, kInvalidArgument (longer than `bytes_max`), kUnavailable.
Result<std::string> read_file(const std::string& path, size_t bytes_max);

}  // namespace mooncake
