// SPDX-License-Identifier: Apache-2.0
#include "engine/transports.h"

#include <algorithm>

#include "base/log.h"
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

Result<std::vector<std::unique_ptr<Transport>>> make_transports(const TransportContext& context) {
    MC_RETURN_IF_ERROR(check_names(context.options));
    std::vector<std::unique_ptr<Transport>> transports;
    for (const Maker& maker : kMakers) {
        if (!allowed(context.options, maker.name)) continue;
        auto transport = maker.make(context);
        if (transport) transports.push_back(std::move(*transport));
        else MC_LOG_WARNING("transport {} is not available: {}", maker.name, transport.error().to_string());
    }
    return transports;
}

}  // namespace mooncake
