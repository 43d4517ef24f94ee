// SPDX-License-Identifier: Apache-2.0
#include "base/parse_switch.h"

#include <strings.h>

#include <algorithm>
#include <initializer_list>

namespace mooncake {

Result<bool> parse_switch(std::string_view text) {
    const auto is = [](char letter) { return letter == ' ' || letter == '\t' || letter == '\r' || letter == '\n'; };
    while (!text.empty() && is(text.front())) text.remove_prefix(1);
    while (!text.empty() && is(text.back())) text.remove_suffix(1);
    const auto any_of = [&](std::initializer_list<std::string_view> words) {
        return std::any_of(words.begin(), words.end(), [&](std::string_view word) {
            return text.size() == word.size() && ::strncasecmp(text.data(), word.data(), word.size()) == 0;
        });
    };
    if (any_of({"true", "t", "yes", "y", "on", "1"})) return true;
    if (any_of({"false", "f", "no", "n", "off", "0"})) return false;
    return fail(Code::kInvalidArgument, "true or false is expected");
}

}  // namespace mooncake
