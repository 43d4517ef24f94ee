// SPDX-License-Identifier: Apache-2.0
#include "engine/transports.h"

#include <algorithm>

#include "base/log.h"
#include "engine/engine.h"
#include "transport/fabric/api.h"
#include "transport/fabric/nics.h"
#include "transport/fabric/profile.h"
#include "transport/self/self.h"
#include "transport/shm/shm.h"
#include "transport/tcp/tcp.h"

namespace mooncake {

namespace {

struct Maker {
    std::string_view name;
    Result<std::unique_ptr<Transport>> (*make)(const TransportContext&);
};

/// Every transport of this build; adding one is one line here and one folder.
constexpr Maker kMakers[] = {
    {"self", make_self_transport},
    {"shm", make_shm_transport},
    {"tcp", tcp::make_tcp_transport},
};

bool allowed(const EngineOptions& options, std::string_view name) {
    const auto& list = options.transports;
    return list.empty() || std::find(list.begin(), list.end(), name) != list.end();
}

Result<> check_names(const EngineOptions& options) {
    for (const std::string& name : options.transports) {
        const auto known = [&](const Maker& maker) { return maker.name == name; };
        if (!std::any_of(std::begin(kMakers), std::end(kMakers), known))
            return fail(Code::kInvalidArgument, "MC_TRANSPORTS names '{}', which this build does not have", name);
    }
    return {};
}

}  // namespace

bool efa_usable() { return fabric::has_efa_device("/") && fabric::load_library(load_options().fabric.library).has_value(); }

Result<std::vector<std::unique_ptr<Transport>>> make_transports(const TransportContext& context) {
    const EngineOptions& options = context.options;
    MC_RETURN_IF_ERROR(check_names(options));
    const bool wants_fabric = allowed(options, "fabric") && (fabric::is_fabric_protocol(options.protocol) || !options.transports.empty());
    std::vector<std::unique_ptr<Transport>> transports;
    bool has_fabric = false;
    for (const Maker& maker : kMakers) {
        const bool is_fabric = maker.name == "fabric";
        if (!allowed(options, maker.name) || (is_fabric && !wants_fabric)) continue;
        // Where the fabric must not fail silently, the network has no other way.
        if (maker.name == "tcp" && wants_fabric && !options.fabric.fallback) continue;
        auto transport = maker.make(context);
        if (transport) {
            has_fabric = has_fabric || is_fabric;
            transports.push_back(std::move(*transport));
        } else if (is_fabric && transport.error().code() == Code::kInvalidArgument) {
            return Unexpected(std::move(transport).error());
        } else {
            MC_LOG_WARNING("transport {} is not available: {}", maker.name, transport.error().to_string());
        }
    }
    const auto profile = fabric::choose_profile(options);
    if (options.require_network_device && !(has_fabric && profile && (*profile)->has_devices))
        return fail(Code::kNotSupported, "MC_FORCE_HCA is set, but no RDMA device can be used here");
    const auto same = [&](const auto& transport) { return transport->capabilities().name == options.protocol; };
    if (!has_fabric && !options.protocol.empty() && options.protocol != "tcp" && std::none_of(transports.begin(), transports.end(), same))
        MC_LOG_WARNING("protocol {}: no such device can be used here, tcp carries what leaves this host", options.protocol);
    return transports;
}

}  // namespace mooncake
