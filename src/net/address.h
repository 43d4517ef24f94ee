// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace mooncake::net {

/// A host name or literal address with an optional port, as users write them. The host is kept as written, without brackets.
struct HostPort {
    std::string host;
    uint16_t port = 0;   // 0: none given
    std::string suffix;  // what follows a second colon: "npu_3" in "10.0.0.1:5000:npu_3"

    /// Accepts host, host:port, host:port:npu_N, [v6], [v6]:port, [v6]:port:npu_N, bare v6, v6%scope.
    static Result<HostPort> parse(std::string_view text);
    /// "host:port", IPv6 in brackets; without port when it is 0. The suffix is left out.
    std::string to_string() const;
};

/// True for text such as "2001:db8::1" or "fe80::1%eth0".
bool is_ipv6_literal(std::string_view host);
/// "[2001:db8::1]:80", "10.0.0.1:80"
std::string join_host_port(std::string_view host, uint16_t port);

/// A socket address of either family.
struct SocketAddress {
    sockaddr_storage storage{};
    socklen_t length = 0;

    const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&storage); }
    int family() const noexcept { return storage.ss_family; }
    uint16_t port() const noexcept;
    void set_port(uint16_t port) noexcept;
    std::string to_string() const;
};

/// All addresses of a name, in the order to try. Numeric ones never touch the network; others use the system's resolver, which
/// may block.
Result<std::vector<SocketAddress>> resolve(const std::string& host, uint16_t port);

/// The first address of an interface that is up, running and not loopback; IPv6 only (and then not link-local) if asked for.
Result<std::string> first_public_address(bool ipv6);
/// The address that a name of this machine for itself alone means: "127.0.0.1" and the like, "::1", "localhost". Empty for all others,
/// whatever they resolve to: a host's own name may mean something else to others.
std::string loopback_address(const std::string& host);
/// "0.0.0.0", "::", "*": every address there is.
bool is_wildcard(std::string_view host) noexcept;

}  // namespace mooncake::net
