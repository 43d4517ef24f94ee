// SPDX-License-Identifier: Apache-2.0
#include "rpc/read_switch.h"

#include <sys/epoll.h>

#include <cerrno>
#include <utility>

namespace mooncake::rpc {

ReadSwitch::ReadSwitch(int fd, UniqueFd set, std::shared_ptr<IoHandler> handler)
    : fd_(fd), set_(std::move(set)), handler_(std::move(handler)) {}

Result<std::shared_ptr<ReadSwitch>> ReadSwitch::open(IoLoop& loop, int fd, std::shared_ptr<IoHandler> handler) {
    UniqueFd set(::epoll_create1(EPOLL_CLOEXEC));
    epoll_event nothing{};
    if (!set || ::epoll_ctl(set.get(), EPOLL_CTL_ADD, fd, &nothing) != 0)
        return fail_errno(Code::kUnavailable, errno, "cannot watch a descriptor");
    MC_ASSIGN_OR_RETURN(auto watch, IoLoop::Watch::open(loop, set.get()));
    std::shared_ptr<ReadSwitch> made(new ReadSwitch(fd, std::move(set), std::move(handler)));
    made->watch_ = std::move(watch);
    made->watch_->wait_readable(made);
    return made;
}

void ReadSwitch::close() {
    watch_.reset();
    handler_.reset();
}

void ReadSwitch::on() noexcept {
    epoll_event event{.events = EPOLLIN | EPOLLRDHUP, .data = {}};
    ::epoll_ctl(set_.get(), EPOLL_CTL_MOD, fd_, &event);  // cannot fail: the caller keeps the descriptor open
}

void ReadSwitch::off() noexcept {
    epoll_event nothing{};
    ::epoll_ctl(set_.get(), EPOLL_CTL_MOD, fd_, &nothing);
}

void ReadSwitch::on_readable() {
    const std::shared_ptr<IoHandler> handler = handler_;
    if (handler) handler->on_readable();
    // The set looks anew whether its descriptor is ready; nothing needs to be taken out of it.
    if (watch_) watch_->wait_readable(shared_from_this());
}

}  // namespace mooncake::rpc
