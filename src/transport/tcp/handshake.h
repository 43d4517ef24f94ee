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
    Incarnation incarnation;

    /// "tcp to 10.0.0.1:15123 (10.0.0.1:15777)"
    std::string to_string() const;
};

struct Greeted {
    net::Socket socket;
    uint32_t features = 0;  // both sides have them
};

/// Connects and greets. When it returns success the target has closed every older session of ours for good. kUnavailable,
/// kStale (another incarnation, or a newer session of ours), kRefused (version), kCorrupt (something else listens there).
Result<Greeted> greet(const Target& target, const Hello& hello, Deadline deadline);
/// The same in two steps, so that several connections wait for their answers at once.
Result<net::Socket> send_hello(const Target& target, const Hello& hello, Deadline deadline);
Result<Greeted> receive_hello_reply(const Target& target, net::Socket socket, const Hello& hello, Deadline deadline);

/// What both sides set on a connection of ours.
void tune_data(int fd) noexcept;

/// The endpoint text we publish, and back.
std::string format_endpoint(uint16_t port);
Result<uint16_t> parse_endpoint(std::string_view text);

}  // namespace mooncake::tcp
