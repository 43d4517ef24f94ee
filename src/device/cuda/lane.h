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
#include "device/cuda/copy_kernel.h"
#include "device/cuda/driver.h"

namespace mooncake::cuda {

enum class Direction : uint8_t { kToHost, kToDevice, kWithin };  // kWithin: between two memories of GPUs

/// What we own on one GPU: a stream for each direction, events, and pinned host memory. Everything is made when first needed. Thread-safe;
/// callers are inside a Scope of the device. Belongs to a CudaDevice, which calls give_back() before the end.
class Lanes {
public:
    static constexpr uint64_t kSlotBytes = 512 << 10;  // what the CPU has just touched is still in its cache when it is copied
    static constexpr size_t kSlots = 4;
    static constexpr size_t kRingsMax = 8;

    /// Buffers of pinned memory: while one is filled or emptied by the CPU the GPU has the others.
    struct Ring {
        std::byte* memory = nullptr;
        std::byte* slot(size_t number) const noexcept { return memory + number * kSlotBytes; }
    };

    Lanes(Driver& driver, int device) : driver_(driver), device_(device), kernel_(driver, device) { rings_.reserve(kRingsMax); }

    int device() const noexcept { return device_; }
    /// Never waits for other streams, nor they for it.
    Result<abi::Stream> stream(const Scope& scope, Direction direction);
    Result<abi::Event> take_event(const Scope& scope);
    void put_event(abi::Event event) noexcept;
    /// Waits while all rings are in use.
    Result<Ring> take_ring(const Scope& scope);
    void put_ring(Ring ring) noexcept;
    /// The GPU may still write to it: nobody may have it again.
    void lose_ring() noexcept;
    /// Pinned memory for what the kernel is told. Room for CopyKernel::kPiecesMax.
    Result<CopyKernel::Piece*> take_list(const Scope& scope);
    void put_list(CopyKernel::Piece* list) noexcept;

    /// Waits on this thread until the event has happened. A GPU that hangs is an error, and is not used any more.
    Result<> wait(const Scope& scope, abi::Event event);
    /// As wait(), after which nothing may be under way: a GPU of which that is not known is not used any more.
    Result<> settle(const Scope& scope, abi::Event event) noexcept;
    static constexpr Duration kCapturePatience = 5s;
    /// An event behind all that is on a stream. Waits a while for the end of a graph's capture that forbids it; a stream that is itself being
    /// captured is kInvalidArgument. Null handles are not allowed.
    Result<abi::Event> mark(const Scope& scope, abi::Stream stream, Duration patience = kCapturePatience);
    /// Whether nothing is on the default stream. False also where that cannot be asked.
    Result<bool> default_stream_is_idle(const Scope& scope);
    /// Waits until all that was put on the default stream before has happened: callers expect that of whoever reads their memory.
    Result<> wait_for_default_stream(const Scope& scope);

    /// Whether several copies go by one call; told by an answer of the driver.
    bool batches() const noexcept { return batches_.load(std::memory_order_relaxed); }
    void stop_batches() noexcept { batches_.store(false, std::memory_order_relaxed); }

    CopyKernel& kernel() noexcept { return kernel_; }

    void give_back(const Scope& scope);

private:
    /// False: not before the deadline.
    Result<bool> poll(const Scope& scope, abi::Event event, Deadline deadline);

    Driver& driver_;
    const int device_;
    std::atomic<bool> batches_{true};
    CopyKernel kernel_;
    Mutex mutex_;
    std::condition_variable_any ring_free_;
    std::array<abi::Stream, 3> streams_ MC_GUARDED_BY(mutex_){};
    std::vector<abi::Event> events_ MC_GUARDED_BY(mutex_);  // there is room for all that are made: giving back needs no memory
    size_t events_made_ MC_GUARDED_BY(mutex_) = 0;
    std::vector<Ring> rings_ MC_GUARDED_BY(mutex_);
    size_t rings_made_ MC_GUARDED_BY(mutex_) = 0;
    std::vector<CopyKernel::Piece*> lists_ MC_GUARDED_BY(mutex_);  // as events_
    size_t lists_made_ MC_GUARDED_BY(mutex_) = 0;
};

}  // namespace mooncake::cuda
