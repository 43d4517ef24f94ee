// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "apps/common/flags_log.h"
#include "base/error.h"

namespace mooncake::store {

/// What mooncake_client can be told, with its defaults. Sizes are as written ("4 GB").
struct ClientFlags {
    std::string host = "0.0.0.0";  // or host:port
    std::string bind_address;
    int64_t port = 50052;     // of thin clients (docs/thin-clients.md); 0: none
    bool port_given = false;  // somebody counts on it
    int64_t threads = 1;      // for their calls; fewer than 16 count as 16
    std::string metadata_server = "http://127.0.0.1:8080/metadata";
    std::string master_server_address = "127.0.0.1:50051";
    std::string protocol = "tcp", device_names;
    std::string global_segment_size = "4 GB", local_buffer_size = "0";
    std::string tenant_id = "default";
    bool enable_offload = false;
    std::string offload_path;
    std::string warm_dir, warm_stop, warm_clean;
    bool enable_http_server = false;
    int64_t http_port = 9300;
    LogFlags log;
    std::vector<std::string> warnings;
};

void add_client_flags(FlagSet& set, ClientFlags& flags);
/// kInvalidArgument: an unknown flag or a bad value; the text is for the user. Pure.
Result<ClientFlags> parse_client_flags(std::span<const std::string> arguments);
std::string client_help();

}  // namespace mooncake::store
