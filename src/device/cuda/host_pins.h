// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <stop_token>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/thread_annotations.h"
#include "base/time.h"
#include "device/cuda/driver.h"

namespace mooncake::cuda {

/// Pins host memory that was offered, so that GPUs copy from and to it directly: in chunks, each after a copy has met it, on a thread of its own, and no
/// more of it than a quota allows. Makes no pages: a chunk is pinned when it has all of them. Nothing else is ever pinned by us: CUDA pins memory once
/// only, and who is given memory may want to pin it himself.
///
/// A chunk that is not pinned yet, or not at all, passes through buffers. Thread-safe. Does nothing in a forked child.
class HostPins {
public:
    HostPins(Driver& driver, uint64_t bytes_max, uint64_t chunk_bytes);
    ~HostPins();
    HostPins(const HostPins&) = delete;
    HostPins& operator=(const HostPins&) = delete;

    void offer(std::byte* start, uint64_t length);
    /// Waits for the chunk that is just being pinned, and gives back what is pinned. The thread ends with the last offer.
    void take_back(std::byte* start) noexcept;
    /// A GPU has copied from or to these bytes by way of buffers.
    void want(uint64_t address, uint64_t length, int device);

    uint64_t pinned_bytes() const;

    static constexpr Duration kLookAgain = 250ms;  // for pages that are missing
    static constexpr Duration kAskAgain = 5s;      // for room in the quota

private:
    enum class State : uint8_t { kIdle, kWanted, kPinning, kPinned, kLeftAlone };
    struct Chunk {
        State state = State::kIdle;
        Time not_before{};  // to be wanted again
    };
    struct Offer {
        uint64_t length = 0;
        int device = 0;  // one that copied there: whose context pins it
        std::vector<Chunk> chunks;
    };
    using Offers = std::map<uint64_t, Offer>;  // by start; apart
    struct Wanted {
        uint64_t start = 0;  // of the offer
        size_t chunk = 0;
    };

    bool in_child() const noexcept;
    uint64_t length_of(const Offer& offer, size_t chunk) const noexcept;
    void run(const std::stop_token& stop);
    /// What came of it, and when to try again, if ever.
    Chunk pin(uint64_t address, uint64_t length, int device);
    static bool has_all_pages(uint64_t address, uint64_t length);
    void unpin(uint64_t address, int device) noexcept;

    Driver& driver_;
    const uint64_t bytes_max_, chunk_bytes_;
    const uint32_t birth_;
    mutable Mutex mutex_;
    std::condition_variable_any changed_;
    Offers offers_ MC_GUARDED_BY(mutex_);
    std::deque<Wanted> queue_ MC_GUARDED_BY(mutex_);
    uint64_t claimed_ MC_GUARDED_BY(mutex_) = 0;  // of the quota: what is pinned, and what is just being pinned
    uint64_t pinned_ MC_GUARDED_BY(mutex_) = 0;
    std::jthread thread_ MC_GUARDED_BY(mutex_);
};

}  // namespace mooncake::cuda
