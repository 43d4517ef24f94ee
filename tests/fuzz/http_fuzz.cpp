// SPDX-License-Identifier: Apache-2.0
// URLs, queries and percent codes: what is accepted is well formed, and encoding comes back.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "net/http_routes.h"
#include "net/http_url.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace mooncake;
    using namespace mooncake::net;
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    if (const auto url = HttpUrl::parse(text)) {
        MC_CHECK(!url->host.empty() && url->port != 0 && url->target.front() == '/');
        MC_CHECK(url->target.find_first_of("\r\n \t#") == std::string::npos);
    }
    MC_CHECK(percent_decode(percent_encode(text)).value() == text);
    (void)parse_query(text);
    static const HttpRoutes* const routes = [] {
        auto* made = new HttpRoutes();
        made->add("GET", "/metadata", [](const HttpServerRequest& request) { return HttpResponse{.body = request.path}; });
        return made;
    }();
    const int status = routes->answer({.method = "GET"}, text).status;
    MC_CHECK(status == 200 || status == 400 || status == 404);
    return 0;
}
