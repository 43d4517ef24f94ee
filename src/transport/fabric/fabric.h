// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "transport/fabric/api.h"
#include "transport/transport.h"

namespace mooncake::fabric {

/// The transport over libfabric, with the profile that the options' protocol asks for. kNotSupported with the reason: no library, or
/// no NIC that it knows.
Result<std::unique_ptr<Transport>> make_fabric_transport(const TransportContext& context);
/// The same over another copy of the library, or a fake.
Result<std::unique_ptr<Transport>> make_fabric_transport(const TransportContext& context, std::shared_ptr<FabricApi> api);
/// What it needs is here, in words; or what is missing.
Result<std::string> fabric_state(const EngineOptions& options);
/// The same for EFA devices.
Result<std::string> efa_state(const EngineOptions& options);

}  // namespace mooncake::fabric
