// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "net/socket.h"
#include "transport/tcp/handshake.h"

namespace mooncake::tcp {

/// Asks a target to drop whatever it still has of a session of ours, without waiting: who leaves many targets asks all of them
/// first and listens then. Not thread-safe.
class Farewell {
public:
    /// Begins to connect. `patience` counts from here, however late finish() is called.
    Farewell(const net::SocketAddress& address, const Hello& hello, Duration patience);

    /// True once nothing of ours can move over there any more: the target said so, or it is another process by now.
    bool finish(const Target& target);

private:
    const Hello hello_;
    const Deadline deadline_;
    net::Socket socket_;
};

/// How long a word of the target at the other end of this connection is worth waiting for. One that lives answers within a few
/// round trips; one that hangs would not answer in a second either.
Duration farewell_patience(int fd) noexcept;

}  // namespace mooncake::tcp
