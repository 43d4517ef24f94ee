// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/thread_annotations.h"
#include "net/http_server.h"

namespace mooncake {

/// The server side of the http directory, for programs that host it: `/metadata?key=K` (GET, PUT, DELETE) and `/health`. Status
/// codes and texts are those that clients in the field know. In memory only. Thread-safe; must outlive the server it is
/// attached to.
class MetadataService {
public:
    /// `bytes_max` bounds keys and values together; beyond it PUT is answered 507.
    explicit MetadataService(uint64_t bytes_max = uint64_t{1} << 30) : bytes_max_(bytes_max) {}

    /// Adds the handlers; before server.start().
    void attach(net::HttpServer& server);
    net::HttpResponse handle(const net::HttpServerRequest& request);

private:
    net::HttpResponse get(const std::string& key) MC_EXCLUDES(mutex_);
    net::HttpResponse put(const std::string& key, const std::string& value) MC_EXCLUDES(mutex_);
    net::HttpResponse remove(const std::string& key) MC_EXCLUDES(mutex_);

    const uint64_t bytes_max_;
    Mutex mutex_;
    std::map<std::string, std::string> values_ MC_GUARDED_BY(mutex_);
    uint64_t bytes_ MC_GUARDED_BY(mutex_) = 0;
};

}  // namespace mooncake
