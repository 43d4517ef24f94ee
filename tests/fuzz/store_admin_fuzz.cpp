// SPDX-License-Identifier: Apache-2.0
// What anybody may ask on the master's HTTP port: "query\nbody", given to every handler. Each answers with a status of its own.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "net/http_url.h"
#include "store/admin/http_admin.h"

namespace {

using namespace mooncake;
using namespace mooncake::store;

/// Answers what the admin service is asked, without sockets.
class Routes final : public net::HttpServer {
public:
    void handle(const std::string& method, const std::string& path, net::HttpHandler handler) override {
        if (path == "/" || path.starts_with("/metrics")) return;  // they take long, and listen to nothing
        routes_.push_back({.method = method, .path = path, .handler = std::move(handler)});
    }
    void start() override {}
    uint16_t port() const noexcept override { return 0; }
    void stop() override {}

    void ask_all(const net::HttpParameters& parameters, const std::string& body) const {
        for (const Route& route : routes_) {
            const net::HttpResponse answer = route.handler(
                {.method = route.method, .path = route.path, .parameters = parameters, .body = body});
            MC_CHECK(answer.status >= 200 && answer.status < 600);
            while (answer.pieces && !answer.pieces().empty()) continue;
        }
    }

private:
    struct Route {
        std::string method;
        std::string path;
        net::HttpHandler handler;
    };
    std::vector<Route> routes_;
};

/// A master without nodes, whose tenants may have quotas.
struct Served {
    Served() {
        configure_log({.level = LogLevel::kOff});
        admin.attach(routes);
    }
    static MasterOptions options() {
        MasterOptions made;
        made.tenants = true;
        return made;
    }

    LockedMaster master{options(), nullptr, nullptr};
    MasterMetrics metrics;
    AdminService admin{master, metrics, {.address = "127.0.0.1:50051"}};
    Routes routes;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::string text(reinterpret_cast<const char*>(data), size);
    const size_t line = std::min(text.find('\n'), text.size());
    const auto parameters = net::parse_query(text.substr(0, line));
    if (!parameters) return 0;
    // A master of its own each time would be slow; one for ever would fill up with tenants.
    static auto served = std::make_unique<Served>();
    static int asked = 0;
    if (++asked % 1000 == 0) served = std::make_unique<Served>();
    served->routes.ask_all(*parameters, text.substr(std::min(line + 1, text.size())));
    return 0;
}
