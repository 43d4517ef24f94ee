// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace mooncake::fabric {

/// Breaks every TCP connection that others made to one of our endpoints, and ends its listening: no more come. `name` is a socket
/// address, as providers over TCP name their endpoints. How many connections there were; 0 also for what is no such address.
///
/// For the moment before an endpoint is closed. A connection that was accepted but has not yet said what it wants keeps a pointer to
/// the endpoint inside the library (libfabric 1.17, and newer ones): the process crashes if its first bytes come after the endpoint
/// was closed. Once its socket is broken, the next progress call throws it away. The library closes the descriptors itself.
size_t break_connections_to(std::span<const std::byte> name);

/// How many bytes have come over the connections that others have to one of our endpoints now. Nothing for what is no such address.
std::optional<uint64_t> bytes_received_at(std::span<const std::byte> name);

}  // namespace mooncake::fabric
