// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace mooncake::store {

constexpr size_t kConfigBytesMax = 1 << 20;

/// The names and values of a flat configuration in JSON or YAML, values as a command line would give them, in the file's order;
/// nulls are left out. kInvalidArgument: too long, not readable as either, not flat. Pure.
Result<std::vector<std::pair<std::string, std::string>>> parse_config(std::string_view text);

/// The bytes of a file of at most kConfigBytesMax. kNotFound, kInvalidArgument (too long, no file), kUnavailable.
Result<std::string> read_config_file(const std::string& path);

}  // namespace mooncake::store
