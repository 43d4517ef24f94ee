// SPDX-License-Identifier: Apache-2.0
#include "coordination/directory.h"

#include <algorithm>
#include <cctype>

#include "coordination/etcd/etcd_directory.h"
#include "coordination/http/http_directory.h"
#include "coordination/memory/memory_directory.h"
#include "coordination/redis/redis_directory.h"

namespace mooncake {

namespace {

std::string key_prefix(const std::string& cluster_id) { return cluster_id.empty() ? "mooncake/" : "mooncake/" + cluster_id + "/"; }

std::string lower_case(std::string text) {
    std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return text;
}

}  // namespace

Result<std::unique_ptr<Directory>> open_directory(const std::string& connection, const EngineOptions& options) {
    const size_t colon = connection.find("://");
    if (colon == std::string::npos) {
        if (connection.find(':') == std::string::npos)
            return fail(Code::kInvalidArgument, "metadata server '{}' is neither scheme://address nor host:port", connection);
        return make_etcd_directory(connection);
    }
    const std::string scheme = lower_case(connection.substr(0, colon));
    const std::string rest = connection.substr(colon + 3);
    if (scheme == "http" || scheme == "https") return make_http_directory(connection);
    if (scheme == "etcd") return make_etcd_directory(rest);
    if (scheme == "redis") return make_redis_directory(rest, options);
    if (scheme == "memory") return make_memory_directory(rest);
    return fail(Code::kInvalidArgument, "metadata server '{}': unknown scheme '{}'; known are http, etcd, redis and memory", connection,
                scheme);
}

std::string descriptor_key(const std::string& cluster_id, const std::string& segment_name) {
    const bool has_folder = segment_name.find('/') != std::string::npos;
    return key_prefix(cluster_id) + (has_folder ? "" : "ram/") + segment_name;
}

std::string rpc_meta_key(const std::string& cluster_id, const std::string& server_name) {
    return key_prefix(cluster_id) + "rpc_meta/" + server_name;
}

}  // namespace mooncake
