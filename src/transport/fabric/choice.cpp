// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/choice.h"

#include "transport/fabric/profile.h"

namespace mooncake::fabric {

bool asked_for(const EngineOptions& options) { return is_fabric_protocol(options.protocol) || !options.transports.empty(); }

bool alone(const EngineOptions& options) { return !options.fabric.fallback; }

Result<> check_choice(const EngineOptions& options, bool made, const Error& absent) {
    const auto profile = choose_profile(options);
    const bool has_device = made && profile && (*profile)->has_devices;
    if (options.require_network_device && !has_device)
        return fail(Code::kNotSupported, "MC_FORCE_HCA is set, but no RDMA device can be used here: {}", absent.message());
    if (!made && is_fabric_protocol(options.protocol) && alone(options))
        return fail(Code::kNotSupported, "protocol {}: {}; MC_FABRIC_FALLBACK does not allow another", options.protocol, absent.message());
    return {};
}

}  // namespace mooncake::fabric
