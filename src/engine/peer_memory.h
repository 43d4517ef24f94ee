// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/quiescence.h"
#include "base/snapshot.h"
#include "base/thread_annotations.h"
#include "transport/descriptor.h"

namespace mooncake {

/// What one life of a peer has said of its memory: which of it is not the host's. May be old: the peer registers when it likes, and checks
/// every access itself. Shared by the links to that life. Thread-safe; readers take no lock.
class PeerMemory {
public:
    /// By address, apart.
    using Ranges = std::vector<DeviceRange>;

    /// All of it is host memory, so far as we know: one load.
    bool empty() const noexcept { return ranges_count_.load(std::memory_order_relaxed) == 0; }
    /// The peer was asked again.
    void replace(Ranges ranges);

    /// The list as it was when this began.
    class Reading {
    public:
        explicit Reading(PeerMemory& memory) noexcept : section_(memory.readers_.enter()), ranges_(memory.ranges_.get()) {}
        /// The kind of the memory at `address`, and how many of the `length` bytes from there are of that kind.
        struct Run {
            MemoryKind kind = MemoryKind::kHost;
            uint64_t length = 0;
        };
        Run at(uint64_t address, uint64_t length) const noexcept;

    private:
        const Quiescence::Section section_;
        const Ranges& ranges_;
    };

private:
    Quiescence readers_;
    Mutex mutex_;  // one replace() at a time
    Snapshot<Ranges> ranges_{readers_, std::make_unique<const Ranges>()};
    std::atomic<size_t> ranges_count_{0};
};

}  // namespace mooncake
