// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "transport/transport.h"

namespace mooncake {

/// Every transport of this build that the options allow and that works here; the others are logged. kInvalidArgument when the
/// options name one that this build does not have.
Result<std::vector<std::unique_ptr<Transport>>> make_transports(const TransportContext& context);

}  // namespace mooncake
