// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/core.h>

#include <string>
#include <string_view>
#include <utility>

// MC_EXPORT marks what libtransfer_engine.so offers to our other modules; third-party code inside it stays hidden.
#define MC_EXPORT __attribute__((visibility("default")))

namespace mooncake {

/// fmt::vformat, compiled once (format.cpp) so that no other file pays for fmt's implementation.
MC_EXPORT std::string vformat_text(fmt::string_view text, fmt::format_args arguments);

template <typename... Args>
std::string format_text(fmt::format_string<Args...> text, Args&&... arguments) {
    return vformat_text(text, fmt::make_format_args(arguments...));
}

}  // namespace mooncake
