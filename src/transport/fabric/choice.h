// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "base/error.h"
#include "base/options.h"

// What the options say of this transport, for the list of transports (transport/maker.h). Pure.
namespace mooncake::fabric {

inline constexpr std::string_view kProtocols[] = {"efa", "rdma", "cxi"};  // and "fabric:<profile>"

/// By its protocol, or because MC_TRANSPORTS names it.
bool asked_for(const EngineOptions& options);
/// Where MC_FABRIC_FALLBACK does not allow another.
bool alone(const EngineOptions& options);
/// kNotSupported: a network device is required, or nothing may take our place, and we are not here. `absent` says why.
Result<> check_choice(const EngineOptions& options, bool made, const Error& absent);

}  // namespace mooncake::fabric
