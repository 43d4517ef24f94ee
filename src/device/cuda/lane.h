// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/error.h"
#include "base/thread_annotations.h"
#include "base/time.h"
#include "device/cuda/driver.h"

namespace mooncake::cuda {

enum class Direction : uint8_t { kToHost, kToDevice, kWithin };  // kWithin: between two memories of GPUs

/// What we own on one GPU: a stream for each direction, events, and pinned host memory. Everything is made when first needed. Thread-safe;
/// callers are inside a Scope of the device. Belongs to a CudaDevice, which calls give_back() before the end.
class Lanes {
public:
    static constexpr uint64_t kSlotBytes = 2 << 20;
    static constexpr size_t kPairsMax = 4;

    /// Two buffers of pinned memory: while one is filled or emptied by the CPU the GPU has the other.
    struct Pair {
        std::array<std::byte*, 2> slots{};
    };

    Lanes(Driver& driver, int device) : driver_(driver), device_(device) {}

    int device() const noexcept { return device_; }
    /// Never waits for other streams, nor they for it.
    Result<abi::Stream> stream(const Scope& scope, Direction direction);
    Result<abi::Event> take_event(const Scope& scope);
    void put_event(abi::Event event);
    /// Waits while all pairs are in use.
    Result<Pair> take_pair(const Scope& scope);
    void put_pair(Pair pair);
    /// The GPU may still write to it: nobody may have it again.
    void lose_pair();

    /// Waits on this thread until the event has happened. A GPU that hangs is an error, and is not used any more.
    Result<> wait(const Scope& scope, abi::Event event);
    /// As wait(), after which nothing may be under way: a GPU of which that is not known is not used any more.
    Result<> settle(const Scope& scope, abi::Event event);
    /// Waits until all that was put on the default stream before has happened: callers expect that of whoever reads their memory.
    Result<> wait_for_default_stream(const Scope& scope);

    /// Whether several copies go by one call; told by an answer of the driver.
    bool batches() const noexcept { return batches_.load(std::memory_order_relaxed); }
    void stop_batches() noexcept { batches_.store(false, std::memory_order_relaxed); }

    void give_back(const Scope& scope);

private:
    /// False: not before the deadline.
    Result<bool> poll(const Scope& scope, abi::Event event, Deadline deadline);
    Result<Pair> make_pair(const Scope& scope);

    Driver& driver_;
    const int device_;
    std::atomic<bool> batches_{true};
    Mutex mutex_;
    std::condition_variable_any pair_free_;
    std::array<abi::Stream, 3> streams_ MC_GUARDED_BY(mutex_){};
    std::vector<abi::Event> events_ MC_GUARDED_BY(mutex_);
    std::vector<Pair> pairs_ MC_GUARDED_BY(mutex_);
    size_t pairs_made_ MC_GUARDED_BY(mutex_) = 0;
};

}  // namespace mooncake::cuda
