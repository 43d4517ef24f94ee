// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "base/error.h"
#include "base/unique_fd.h"
#include "rpc/io_loop.h"

namespace mooncake::rpc {

/// Tells a handler, on its loop's thread, that a descriptor can be read or has ended, as long as it is. While it is off the loop's thread sleeps
/// on whatever arrives, which a plain Watch cannot do: somebody else reads. Borrows the descriptor. Only on the loop's thread, except for on()
/// and off().
class ReadSwitch final : public IoHandler, public std::enable_shared_from_this<ReadSwitch> {
public:
    /// Off. The handler is kept alive until close().
    static Result<std::shared_ptr<ReadSwitch>> open(IoLoop& loop, int fd, std::shared_ptr<IoHandler> handler);
    void close();

    /// From any thread, while the descriptor is open.
    void on() noexcept;
    /// From any thread. The handler may still be called: for what was noticed before, and if the connection broke.
    void off() noexcept;

private:
    ReadSwitch(int fd, UniqueFd set, std::shared_ptr<IoHandler> handler);
    void on_readable() override;
    void on_writable() override {}

    const int fd_;
    const UniqueFd set_;  // an epoll set with fd_ alone, which the loop watches
    std::shared_ptr<IoHandler> handler_;
    std::unique_ptr<IoLoop::Watch> watch_;
};

}  // namespace mooncake::rpc
