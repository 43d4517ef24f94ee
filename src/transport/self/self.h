// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "transport/transport.h"

namespace mooncake {

/// Reaches our own process: copies on the caller's thread, or in a small pool for those who do not wait.
Result<std::unique_ptr<Transport>> make_self_transport(const TransportContext& context);

}  // namespace mooncake
