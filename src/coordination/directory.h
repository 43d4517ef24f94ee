// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "base/error.h"
#include "base/options.h"
#include "base/time.h"

namespace mooncake {

/// A small key-value directory that all processes of a cluster see: http, etcd, redis, or a map in memory as their twin.
/// Thread-safe; every call is bounded by its deadline; a server that went away and came back is used again by itself.
class Directory {
public:
    virtual ~Directory() = default;
    virtual Result<std::string> get(const std::string& key, Deadline deadline) = 0;  // kNotFound, kUnavailable
    /// Replaces what was there. kAlreadyExists: the entry is an address of another process (rpc_meta), which http servers do not replace; who knows
    /// better removes it first.
    virtual Result<> put(const std::string& key, const std::string& value, Deadline deadline) = 0;
    virtual Result<> remove(const std::string& key, Deadline deadline) = 0;  // kNotFound is success
};

/// `connection`: "http://host:port/path", "https://...", "etcd://host:port[,...]", "redis://host:port", a bare "host:port"
/// (etcd), "memory://name" (one map per name and process). kInvalidArgument for other schemes. Connects on first use.
MC_EXPORT Result<std::unique_ptr<Directory>> open_directory(const std::string& connection, const EngineOptions& options);

/// Keys of the public layout: mooncake/[cluster/]ram/NAME (or mooncake/[cluster/]NAME when NAME contains '/') and
/// mooncake/[cluster/]rpc_meta/NAME.
std::string descriptor_key(const std::string& cluster_id, const std::string& segment_name);
std::string rpc_meta_key(const std::string& cluster_id, const std::string& server_name);

}  // namespace mooncake
