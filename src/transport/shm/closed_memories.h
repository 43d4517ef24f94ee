// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <set>

#include "base/thread_annotations.h"
#include "base/time.h"

namespace mooncake::shm {

/// Memories of devices that an initiator has closed and has not told their owner of. Many may go at once, and a connection takes only so many
/// messages that nobody reads: neighbours are told in one. Thread-safe.
class ClosedMemories {
public:
    /// `ranges`: the other end takes neighbours together.
    explicit ClosedMemories(bool ranges) noexcept : ranges_(ranges) {}

    /// One that will be added, with the memory which that takes: for who must not fail then.
    using Prepared = std::set<uint64_t>::node_type;
    static Prepared prepare(uint64_t number) {
        std::set<uint64_t> one{number};
        return one.extract(one.begin());
    }

    void add(uint64_t number) { add(prepare(number)); }
    void add(Prepared number) noexcept;
    /// Tells what there is; when the connection is full, waits for so long in all, and keeps the rest for the next time.
    void tell(int fd, Duration patience);

private:
    const bool ranges_;
    Mutex mutex_;
    std::set<uint64_t> untold_ MC_GUARDED_BY(mutex_);
};

}  // namespace mooncake::shm
