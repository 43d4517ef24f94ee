// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/closed_memories.h"

#include <poll.h>

#include <utility>

#include "transport/shm/channel.h"

namespace mooncake::shm {

void ClosedMemories::add(Prepared number) noexcept {
    Lock lock(mutex_);
    untold_.insert(std::move(number));
}

void ClosedMemories::tell(int fd, Duration patience) {
    const Deadline end = Deadline::after(patience);
    Lock lock(mutex_);
    while (!untold_.empty()) {
        auto last = untold_.begin();
        const uint64_t first = *last;
        uint64_t more = 0;
        while (++last != untold_.end() && ranges_ && *last == first + more + 1) ++more;
        const auto sent = send_message(fd, {.kind = MessageKind::kMemoryClosed, .address = more, .value = first});
        if (!sent && sent.error().code() == Code::kBusy) {
            if (end.passed()) return;
            pollfd room{.fd = fd, .events = POLLOUT, .revents = 0};
            (void)::poll(&room, 1, 10);
            continue;
        }
        // If it is gone, it knows.
        untold_.erase(untold_.begin(), untold_.upper_bound(first + more));
    }
}

}  // namespace mooncake::shm
