// SPDX-License-Identifier: Apache-2.0
#include "engine/transports.h"

#include <algorithm>

#include "base/log.h"
#include "engine/engine.h"
#include "transport/fabric/api.h"
#include "transport/fabric/fabric.h"
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
    {"fabric", fabric::make_fabric_transport},
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

/// Says, once, that something else than the protocol carries the bytes; or why there is nothing that may.
Result<> check_fabric(const EngineOptions& options, bool has_fabric, const Error& absent) {
    const auto profile = fabric::choose_profile(options);
    const bool has_device = has_fabric && profile && (*profile)->has_devices;
    if (options.require_network_device && !has_device)
        return fail(Code::kNotSupported, "MC_FORCE_HCA is set, but no RDMA device can be used here: {}", absent.message());
    const std::string_view protocol = options.protocol;
    if (has_fabric || protocol.empty() || protocol == "tcp" || protocol == "shm") return {};
    if (fabric::is_fabric_protocol(protocol) && !options.fabric.fallback)
        return fail(Code::kNotSupported, "protocol {}: {}; MC_FABRIC_FALLBACK does not allow another", protocol, absent.message());
    MC_LOG_WARNING("protocol {}: {}; tcp carries what leaves this host", protocol, absent.message());
    return {};
}

}  // namespace

bool efa_usable() { return fabric::has_efa_device("/") && fabric::load_library(load_options().fabric.library).has_value(); }

Result<std::vector<std::unique_ptr<Transport>>> make_transports(const TransportContext& context) {
    const EngineOptions& options = context.options;
    MC_RETURN_IF_ERROR(check_names(options));
    const bool wants_fabric = allowed(options, "fabric") && (fabric::is_fabric_protocol(options.protocol) || !options.transports.empty());
    std::vector<std::unique_ptr<Transport>> transports;
    Error absent(Code::kNotSupported, "no such device can be used here");
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
        } else if (!is_fabric) {
            MC_LOG_WARNING("transport {} is not available: {}", maker.name, transport.error().to_string());
        } else {
            if (transport.error().code() == Code::kInvalidArgument) return Unexpected(std::move(transport).error());
            absent = std::move(transport).error();
        }
    }
    MC_RETURN_IF_ERROR(check_fabric(options, has_fabric, absent));
    return transports;
}

}  // namespace mooncake
