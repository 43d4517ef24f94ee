// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "transport/maker.h"
#include "transport/transport.h"

namespace mooncake {

/// Every transport of this build.
std::span<const TransportMaker> transport_makers() noexcept;

/// Those of them that the options allow and that work here; the others are logged. One that has to be asked for is there only when the
/// protocol or MC_TRANSPORTS does. kInvalidArgument when the options name one that is not in the list; kNotSupported when they cannot
/// do without one that does not work here.
Result<std::vector<std::unique_ptr<Transport>>> make_transports(const TransportContext& context,
                                                                std::span<const TransportMaker> makers = transport_makers());

}  // namespace mooncake
