// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "base/error.h"

// The JSON that etcd's gateway answers.
namespace mooncake {

/// The value of the one key a range request asked for. kNotFound: there is no such key. kCorrupt.
Result<std::string> parse_range_answer(const std::string& body);
/// The text of {"error": ..., "code": ...}, or the beginning of whatever came.
std::string etcd_error_text(const std::string& body);

}  // namespace mooncake
