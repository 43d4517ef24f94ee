// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "conductor/proxy/cluster.h"
#include "conductor/proxy/options.h"

namespace mooncake::conductor {

struct PageRequest {
    std::string_view method, path, body, api_key;
};
struct PageAnswer {
    int status = 200;
    std::string body;
    std::string content_type = "application/json";
};

/// What the proxy answers by itself: health, metrics, status, membership. Nothing: it is no such page. Does not block.
std::optional<PageAnswer> answer_page(const PageRequest& request, Cluster& cluster, const ProxyOptions& options);

/// {"url" or "host" and "port", "role": "prefill" | "decode" | "both", "name", "bootstrap_port", "cache_blocks", "stages", "kv_tokens_max"}. kInvalidArgument.
Result<MemberSpec> parse_member(std::string_view json);
/// "host:port" or "http://host:port", with "/BOOTSTRAP_PORT" behind it where a dialect has one.
Result<MemberSpec> parse_member_address(std::string_view text, Role role);

}  // namespace mooncake::conductor
