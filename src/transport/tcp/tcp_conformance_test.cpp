// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/tcp.h"
#include "transport/testing/conformance.h"

namespace mooncake::testing {

MC_INSTANTIATE_CONFORMANCE_OF_TWO(Tcp, TransportCase{.name = "tcp", .make = tcp::make_tcp_transport});
MC_INSTANTIATE_KINDS(Tcp, TransportCase{.name = "tcp", .make = tcp::make_tcp_transport});

}  // namespace mooncake::testing
