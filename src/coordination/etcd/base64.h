// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "base/error.h"

namespace mooncake {

/// The standard alphabet with padding (RFC 4648, section 4).
std::string base64_encode(std::string_view bytes);
/// kCorrupt for anything base64_encode() would not write.
Result<std::string> base64_decode(std::string_view text);

}  // namespace mooncake
