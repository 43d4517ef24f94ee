// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/thread_annotations.h"
#include "base/unique_fd.h"

namespace mooncake::python {

/// Where the engine's threads leave word of finished batches for one asyncio event loop: tokens behind an eventfd, so that those
/// threads never wait for the interpreter lock and many completions cost one wake-up. Copies share the queue. Thread-safe.
class CompletionPort {
public:
    CompletionPort();

    int fileno() const noexcept { return queue_->event.get(); }
    /// All tokens since the last call; clears the eventfd.
    std::vector<uint64_t> take();
    void put(uint64_t token) const noexcept;

private:
    struct Queue {
        UniqueFd event;
        Mutex mutex;
        std::vector<uint64_t> tokens MC_GUARDED_BY(mutex);  // at most one per batch in flight
    };
    std::shared_ptr<Queue> queue_;
};

}  // namespace mooncake::python
