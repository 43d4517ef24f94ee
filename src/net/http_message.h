// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

namespace mooncake::net {

/// Makes the next piece of a body; an empty one ends it.
using HttpPieces = std::function<std::string()>;

/// An answer as a client gets it and a server gives it.
struct HttpResponse {
    int status = 200;
    std::string body;
    std::string content_type = "text/plain; charset=utf-8";
    std::string allow{};  // with 405: the methods that there are
    /// What follows `body` in an answer too large to be held as a whole; only servers give it. Called on the server's threads, each
    /// time after the client took the piece before, and destroyed when the answer or the connection ends.
    HttpPieces pieces = nullptr;
};

}  // namespace mooncake::net
