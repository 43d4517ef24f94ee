// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "net/socket.h"
#include "transport/tcp/wire.h"

namespace mooncake::tcp {

/// Whom an initiator talks to.
struct Target {
    std::string name;  // for people
    std::string host;
    uint16_t port = 0;
    uint16_t version = kVersion;  // the highest we both speak
    Incarnation incarnation;

    /// "tcp to 10.0.0.1:15123 (10.0.0.1:15777)"
    std::string to_string() const;
};

struct Greeted {
    net::Socket socket;
    uint32_t features = 0;  // both sides have them
};

/// Connects and greets. When it returns success the target has closed for good what the hello says is ended; in the version of numbered
/// sessions: all older ones of ours. kUnavailable, kStale (another incarnation, or a newer session of ours), kRefused (version), kCorrupt
/// (something else listens there).
Result<Greeted> greet(const Target& target, const Hello& hello, const net::Patience& patience);
/// The same in two steps, so that several connections wait for their answers at once.
Result<net::Socket> send_hello(const Target& target, const Hello& hello, const net::Patience& patience);
Result<Greeted> receive_hello_reply(const Target& target, net::Socket socket, const Hello& hello, const net::Patience& patience);

/// What both sides set on a connection of ours.
void tune_data(int fd) noexcept;

/// Where a target listens, and the highest version it speaks.
struct Endpoint {
    uint16_t port = 0;
    uint16_t version = kVersion;

    friend bool operator==(const Endpoint&, const Endpoint&) = default;
};
/// The endpoint text we publish, and back.
std::string format_endpoint(const Endpoint& endpoint);
Result<Endpoint> parse_endpoint(std::string_view text);

}  // namespace mooncake::tcp
