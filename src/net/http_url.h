// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"

namespace mooncake::net {

/// The parts of "http://host:port/path?query" that a client needs.
struct HttpUrl {
    bool tls = false;  // https
    std::string host;  // without brackets
    uint16_t port = 80;
    std::string target;  // path and query, at least "/"

    /// kInvalidArgument: no http or https URL, credentials in it, blanks or control characters. A fragment is dropped.
    static Result<HttpUrl> parse(std::string_view text);
    /// "host:port", as the key of a connection and for messages.
    std::string host_port() const;
};

/// Everything except letters, digits and -._~ becomes %XX.
std::string percent_encode(std::string_view text);
/// The inverse; kInvalidArgument for a % without two hex digits. In queries '+' stands for a blank.
enum class Plus : uint8_t { kPlus, kBlank };
Result<std::string> percent_decode(std::string_view text, Plus plus = Plus::kPlus);

using HttpParameters = std::vector<std::pair<std::string, std::string>>;
/// "a=1&b=x%20y&c" -> {{a, 1}, {b, "x y"}, {c, ""}}
Result<HttpParameters> parse_query(std::string_view query);

}  // namespace mooncake::net
