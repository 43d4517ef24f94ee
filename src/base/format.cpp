// SPDX-License-Identifier: Apache-2.0
#define FMT_HEADER_ONLY
#include "base/format.h"

#include <fmt/format.h>

namespace mooncake {

std::string vformat_text(fmt::string_view text, fmt::format_args arguments) { return fmt::vformat(text, arguments); }

}  // namespace mooncake
