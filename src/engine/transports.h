// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "transport/transport.h"

namespace mooncake {

/// Every transport of this build that the options allow and that works here; the others are logged. The fabric is there only when the
/// protocol or MC_TRANSPORTS asks for it; without MC_FABRIC_FALLBACK it then keeps tcp away. kInvalidArgument when the options name
/// one that this build does not have; kNotSupported when a network device is required and absent.
Result<std::vector<std::unique_ptr<Transport>>> make_transports(const TransportContext& context);

}  // namespace mooncake
