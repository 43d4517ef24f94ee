// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/tcp.h"
#include "transport/testing/conformance.h"

namespace mooncake::testing {

namespace {

const TransportCase kTcp{.name = "tcp", .make = tcp::make_tcp_transport};
const TransportCase kTcpChecked{.name = "tcp_checked", .make = tcp::make_tcp_transport, .options = {.tcp_checksum = true}};
const TransportCase kTcpLibcuda{.name = "tcp_libcuda", .make = tcp::make_tcp_transport, .devices = KindSource::kFakeLibcuda};
// So little that everybody waits for everybody.
const TransportCase kTcpShortOfSlots{.name = "tcp_short_of_slots", .make = tcp::make_tcp_transport, .options = {.staging_bytes = 0}};

}  // namespace

MC_INSTANTIATE_CONFORMANCE_OF_TWO(Tcp, kTcp);
MC_INSTANTIATE_KINDS(Tcp, kTcp, kTcpChecked, kTcpLibcuda, kTcpShortOfSlots);

}  // namespace mooncake::testing
