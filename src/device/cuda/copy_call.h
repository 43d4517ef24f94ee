// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "base/error.h"
#include "device/cuda/driver.h"
#include "device/cuda/host_pins.h"
#include "device/cuda/lane.h"
#include "device/cuda/pointers.h"
#include "device/device.h"

namespace mooncake::cuda {

/// Who makes a call possible.
struct CopyMeans {
    Driver& driver;
    const std::function<Lanes&(int device)>& lanes;
    /// Refuses memory of a GPU that is not what was registered at its address. Asked once for each allocation.
    const std::function<Result<>(const Pointer&)>& admit;
    HostPins& pins;  // hears of pageable memory
    bool caller_sync = true;
};

/// One call of CudaDevice::copy(). First every address is looked up, which is an error for memory that is gone and would otherwise be a fault
/// that costs the process its GPU; then the GPUs copy, in units of which a few are under way at once. Memory that a GPU reaches is copied
/// directly, pageable memory by way of pinned memory of ours. When run() returns, no GPU touches any of it. Not thread-safe.
class CopyCall {
public:
    CopyCall(const CopyMeans& means, MemoryKind to, MemoryKind from)
        : means_(means), to_(to), from_(from), caller_sync_(means.caller_sync) {}

    Result<> run(std::span<const CopyPart> parts);

private:
    struct Piece {
        uint64_t to = 0;
        uint64_t from = 0;
        uint64_t length = 0;
        int device = 0;  // whose stream copies it
        Direction direction = Direction::kWithin;
        bool staged = false;                      // the host's side is pageable
        bool batched = true;                      // may go with others in one call
        bool inside = false;                      // both ends are memory of that GPU
        int64_t to_offset = 0, from_offset = 0;   // of pinned memory, for calls of several copies
        uint64_t to_memory = 0, from_memory = 0;  // where the allocation or registration begins

        bool same_lane(const Piece& other) const noexcept {
            return device == other.device && direction == other.direction && staged == other.staged && inside == other.inside;
        }
    };

    /// What holds an address, from the driver or from memory; null: pageable.
    Result<const Pointer*> find(uint64_t address, uint64_t length, MemoryKind kind);
    /// Of the part, or of its beginning: a range that begins in one registration of pinned memory and ends outside of it is no memory a GPU may be
    /// given, so it is cut there.
    Result<Piece> classify(const CopyPart& part);

    Result<> run_lane(std::span<const Piece> pieces);
    /// Where many small parts lie in the same two memories, nobody is asked about each of them. False: they do not; nothing was copied.
    Result<bool> run_alike(std::span<const CopyPart> parts);
    Result<abi::Stream> enter_lane(Lanes& lanes, const Scope& scope, const Piece& first);

    const CopyMeans& means_;
    const MemoryKind to_, from_;
    bool caller_sync_;  // some of the parts may depend on what is on the default stream
    /// What was found at addresses of one side, by its end. Apart: pageable memory is taken to reach further than anybody knows.
    struct Known {
        std::map<uint64_t, Pointer> by_end;
        std::map<uint64_t, Pointer>::iterator last = by_end.end();
    };
    Known of_devices_, of_host_;
    std::vector<int> synced_;  // GPUs whose default stream has been waited for
};

}  // namespace mooncake::cuda
