// SPDX-License-Identifier: Apache-2.0
#include "engine/locator.h"

#include <cerrno>

#include "engine/descriptor_json.h"
#include "engine/messages.h"

namespace mooncake {

namespace {

/// A connection from the life before of a peer that restarted: nothing is known of the peer as it is now.
bool connection_broke(const Error& error) {
    const int why = error.system_errno();
    return error.code() == Code::kUnavailable && (why == 0 || why == ECONNRESET || why == EPIPE);
}

}  // namespace

Result<net::HostPort> Locator::address(const std::string& name, Deadline deadline) {
    if (options_.directory == nullptr) {
        MC_ASSIGN_OR_RETURN(auto parsed, net::HostPort::parse(name));
        if (parsed.port == 0) parsed.port = options_.default_port;
        return parsed;
    }
    MC_ASSIGN_OR_RETURN(const std::string text, options_.directory->get(rpc_meta_key(options_.cluster_id, name), deadline));
    MC_ASSIGN_OR_RETURN(const RpcMeta meta, rpc_meta_from_json(text));
    return net::HostPort{.host = meta.host, .port = meta.rpc_port, .suffix = {}};
}

Result<DescriptorSource::Found> Locator::fetch(const std::string& name, uint32_t buffers_max, Deadline deadline) {
    if (is_own(name)) {
        SegmentDescriptor own = options_.own(buffers_max);
        std::string address = net::join_host_port(own.host, own.rpc_port);
        return Found{.descriptor = std::move(own), .rpc_address = std::move(address)};
    }
    auto where = address(name, deadline);
    if (!where) return Unexpected(std::move(where).error().with_context("locate"));
    const std::string rpc_address = where->to_string();
    const auto request = encode_describe_request(options_.directory == nullptr ? std::string() : name, buffers_max);
    auto reply = client_.call(rpc_address, rpc::Method::kDescribe, request, deadline);
    if (!reply && connection_broke(reply.error())) reply = client_.call(rpc_address, rpc::Method::kDescribe, request, deadline);
    if (!reply) return Unexpected(std::move(reply).error().with_context(format_text("describe {}", rpc_address)));
    MC_ASSIGN_OR_RETURN(auto descriptor, decode_descriptor(*reply));
    // The peer may not know by which address others see it; the one that just worked is right for us.
    descriptor.host = where->host;
    descriptor.name = name;
    return Found{.descriptor = std::move(descriptor), .rpc_address = rpc_address};
}

}  // namespace mooncake
