// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace mooncake::net {

/// An answer as a client gets it and a server gives it.
struct HttpResponse {
    int status = 200;
    std::string body;
    std::string content_type = "text/plain; charset=utf-8";
};

}  // namespace mooncake::net
