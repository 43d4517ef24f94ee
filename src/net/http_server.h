// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/time.h"
#include "net/http_message.h"
#include "net/http_url.h"

namespace mooncake::net {

struct HttpServerOptions {
    std::string host;   // empty: all addresses of both families
    uint16_t port = 0;  // 0: any free one
    int threads = 1;
    size_t connections_max = 4096;       // then the longest idle one is closed for a new one; 503 only if none is idle
    uint64_t body_bytes_max = 16 << 20;  // larger ones are answered 413
    Duration idle_timeout = 30s;         // from the last answer (or accept) to the end of the next request's header
    Duration request_timeout = 10s;      // to receive a body; how long a client may take nothing of its answer
    Duration stop_timeout = 2s;          // how long stop() lets answers under way finish
};

/// A request whose path and query are decoded.
struct HttpServerRequest {
    std::string method;
    std::string path;
    HttpParameters parameters;
    std::string content_type;
    std::string body;

    /// The first parameter of that name; null if there is none.
    const std::string* parameter(std::string_view name) const noexcept;
};

/// Runs on one of the server's threads: a slow handler delays the other connections of that thread.
using HttpHandler = std::function<HttpResponse(const HttpServerRequest& request)>;

/// A small HTTP/1.1 server with keep-alive for metrics, administration and metadata. Unknown paths are answered 404, unknown
/// methods 405, nonsense 400; no client can delay another beyond the options' limits. In a forked child it does nothing.
class HttpServer {
public:
    /// Listens at once; answers from start() on. kAlreadyExists: the port is taken. kUnavailable: the host has no such address, or no descriptor
    /// or thread is to be had.
    static Result<std::unique_ptr<HttpServer>> create(const HttpServerOptions& options);
    /// Stops if still running.
    virtual ~HttpServer() = default;

    /// Only before start(). A method of "*" takes those that have no handler of their own. HEAD is served by GET's handler.
    virtual void handle(const std::string& method, const std::string& path, HttpHandler handler) = 0;
    virtual void start() = 0;
    virtual uint16_t port() const noexcept = 0;
    /// Accepts nothing more, lets requests under way be answered, closes and joins. Idempotent; only from outside handlers.
    virtual void stop() = 0;
};

}  // namespace mooncake::net
