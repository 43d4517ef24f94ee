// SPDX-License-Identifier: Apache-2.0
#include "completion_port.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <system_error>
#include <utility>

namespace mooncake::python {

CompletionPort::CompletionPort() : queue_(std::make_shared<Queue>()) {
    queue_->event = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!queue_->event) throw std::system_error(errno, std::generic_category(), "eventfd");
}

std::vector<uint64_t> CompletionPort::take() {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t cleared = ::read(queue_->event.get(), &count, sizeof count);  // EAGAIN: woken for nothing
    const Lock lock(queue_->mutex);
    return std::exchange(queue_->tokens, {});
}

void CompletionPort::put(uint64_t token) const noexcept {
    const Lock lock(queue_->mutex);
    queue_->tokens.push_back(token);
    if (queue_->tokens.size() > 1) return;  // the loop has been told and has not looked yet
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(queue_->event.get(), &one, sizeof one);
}

}  // namespace mooncake::python
