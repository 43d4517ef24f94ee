// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/thread_annotations.h"
#include "base/time.h"
#include "net/http_message.h"
#include "net/http_url.h"
#include "net/socket.h"

namespace mooncake::net {

struct HttpRequest {
    std::string method = "GET";
    std::string url;
    std::string body;
    std::string content_type;
    /// The server may get it twice without harm. True by definition for GET, HEAD, PUT and DELETE.
    bool repeatable = false;
};

struct HttpClientOptions {
    Duration connect_timeout = 1500ms;
    uint64_t response_bytes_max = 64 << 20;
    size_t idle_connections_max = 4;  // over all servers; the longest unused is closed for another
    Duration idle_timeout = 30s;
};

/// A blocking HTTP/1.1 client that keeps connections for the next call. Thread-safe: each call running uses a connection of its
/// own. Plain http only: https answers kNotSupported, because no TLS library is linked. Follows no redirects, uses no proxy.
class HttpClient {
public:
    explicit HttpClient(HttpClientOptions options = {}) : options_(options) {}

    /// Any complete answer is a success, whatever its status. Errors name method, URL and stage: kInvalidArgument,
    /// kNotSupported, kUnavailable (cannot connect, connection lost), kTimedOut, kCorrupt (no HTTP), kNoSpace (too large).
    Result<HttpResponse> send(const HttpRequest& request, Deadline deadline);

private:
    struct Connection {
        Socket socket;
        Time used;
        bool reused = false;
    };

    Result<HttpResponse> send_to(const HttpUrl& url, const HttpRequest& request, Deadline deadline);
    /// A kept connection that still looks alive, or a new one.
    Result<Connection> take(const HttpUrl& url, bool fresh, Deadline deadline) MC_EXCLUDES(mutex_);
    void keep(const std::string& server, Connection connection) MC_EXCLUDES(mutex_);

    const HttpClientOptions options_;
    Mutex mutex_;
    std::multimap<std::string, Connection> idle_ MC_GUARDED_BY(mutex_);  // by host:port
};

/// One request over a connection of its own.
Result<HttpResponse> http_request(const HttpRequest& request, Deadline deadline);

}  // namespace mooncake::net
