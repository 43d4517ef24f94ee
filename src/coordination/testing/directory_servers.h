// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "coordination/directory.h"

namespace mooncake::testing {

/// A server that a directory connects to, under the control of a test. Its address stays the same over restarts.
class DirectoryServer {
public:
    virtual ~DirectoryServer() = default;
    virtual std::string connection() const = 0;  // for open_directory()
    virtual std::string address() const = 0;     // what error messages name
    virtual void start() = 0;                    // returns when it answers or at least listens
    virtual void kill() = 0;                     // loses what it held
    virtual void pause() = 0;                    // accepts connections, but does not answer
    virtual void resume() = 0;
};

/// A server that listens may still need a moment before it answers: etcd elects itself.
void wait_usable(Directory& directory);

std::unique_ptr<DirectoryServer> make_redis_server(const std::string& extra_configuration = "");
std::unique_ptr<DirectoryServer> make_etcd_server();
/// python/mooncake/http_metadata_server.py
std::unique_ptr<DirectoryServer> make_python_metadata_server();
/// MetadataService in this process.
std::unique_ptr<DirectoryServer> make_metadata_server();

}  // namespace mooncake::testing
