// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace mooncake::fabric {

/// Breaks every TCP connection that others made to one of our endpoints, and ends its listening: no more come. `name` is a socket
/// address, as providers over TCP name their endpoints. How many connections there were; 0 also for what is no such address.
///
/// For the moment before an endpoint is closed. A connection that was accepted but has not yet said what it wants keeps a pointer to
/// the endpoint inside the library (libfabric 1.17, and newer ones): the process crashes if its first bytes come after the endpoint
/// was closed. Once its socket is broken, the next progress call throws it away. The library closes the descriptors itself.
size_t break_connections_to(std::span<const std::byte> name);

/// A TCP connection that one of our endpoints made. Its descriptor is the library's, which may close it at any time.
struct MadeConnection {
    int fd = -1;
    std::vector<std::byte> local, remote;  // its two addresses, by which it is known again
};

/// The connections to one of `peers` that come from the host address of the endpoint `name`. Empty for what is no socket address.
std::vector<MadeConnection> connections_from(std::span<const std::byte> name, std::span<const std::vector<std::byte>> peers);

/// Breaks those that are still there, so that the library finds them ended when it next looks for something to receive. How many there
/// were.
///
/// For the moment before an endpoint is closed. Closing it makes libfabric 1.17 end a read whose answer is just coming in twice, and then
/// use its record for two operations at a time; where receiving fails first it ends it once.
size_t break_connections(std::span<const MadeConnection> connections);

/// How many bytes have come over the connections that others have to one of our endpoints now. Nothing for what is no such address.
std::optional<uint64_t> bytes_received_at(std::span<const std::byte> name);

}  // namespace mooncake::fabric
