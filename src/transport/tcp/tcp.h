// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "transport/transport.h"

namespace mooncake::tcp {

/// The transport that works everywhere: one-sided reads and writes over TCP connections of its own protocol (docs/wire/tcp.md).
/// Listens on a port of its own from options.port_min..port_max.
Result<std::unique_ptr<Transport>> make_tcp_transport(const TransportContext& context);

}  // namespace mooncake::tcp
