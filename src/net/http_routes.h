// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "net/http_server.h"

namespace mooncake::net {

/// Which handler answers which method and path. Not thread-safe while handlers are added; answer() may run concurrently.
class HttpRoutes {
public:
    void add(const std::string& method, const std::string& path, HttpHandler handler) { handlers_[path][method] = std::move(handler); }
    /// Decodes the target and asks the handler; 400, 404 and 405 are made here.
    HttpResponse answer(HttpServerRequest request, std::string_view target) const;

private:
    std::map<std::string, std::map<std::string, HttpHandler>> handlers_;  // path -> method
};

}  // namespace mooncake::net
