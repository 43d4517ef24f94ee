// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/error.h"
#include "base/time.h"
#include "net/address.h"
#include "net/socket.h"
#include "rpc/io_loop.h"

namespace mooncake::rpc {

/// Makes one TCP connection without blocking: looks the name up, then tries its addresses one after another, each with an equal
/// share of the time left. Only on its loop's thread. Errors name the stage (resolve, connect) and the address.
class Dialer final : public IoHandler, public std::enable_shared_from_this<Dialer> {
public:
    using Done = std::function<void(Result<net::Socket>)>;

    Dialer(std::shared_ptr<IoLoop> loop, net::HostPort target, Deadline deadline, Done done);

    /// Calls done() once, here or later.
    void start();
    /// done() is not called any more.
    void cancel();

private:
    void on_readable() override {}
    void on_writable() override;
    void on_resolved(Result<std::vector<net::SocketAddress>> addresses);
    void try_next();
    Result<bool> begin(const net::SocketAddress& address);
    void give_up_on(Error error);
    void on_timeout();
    void finish(Result<net::Socket> result);

    const std::shared_ptr<IoLoop> loop_;
    const net::HostPort target_;
    const Deadline deadline_;
    Done done_;  // empty: over
    IoLoop::Timer timer_;
    std::vector<net::SocketAddress> addresses_;
    size_t next_ = 0;
    bool resolved_ = false;
    net::Socket socket_;
    std::unique_ptr<IoLoop::Watch> watch_;
    Error last_;
};

}  // namespace mooncake::rpc
