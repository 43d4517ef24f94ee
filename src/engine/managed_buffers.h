// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <unordered_map>

#include "base/error.h"
#include "base/thread_annotations.h"
#include "engine/buddy.h"

namespace mooncake {

/// Where ManagedBuffers gets registered memory from: Engine::allocate_memory and free_memory.
struct MemorySource {
    std::function<Result<void*>(uint64_t length)> allocate;
    std::function<Result<>(void* address)> free;
};

/// Buffers of any size out of registered memory, taken a large chunk at a time: untouched parts of a chunk cost nothing.
/// Thread-safe. Gives the chunks back never: the source ends with the engine, which takes all its memory along.
class MC_EXPORT ManagedBuffers {
public:
    static constexpr uint64_t kChunkBytes = uint64_t{2} << 30;

    explicit ManagedBuffers(MemorySource source, uint64_t chunk_bytes = kChunkBytes);

    Result<void*> allocate(uint64_t length);  // kInvalidArgument (0), or what the source says
    /// kNotRegistered: not allocated here, or freed already; kInvalidArgument: `length` is of another size class.
    Result<> free(void* address, uint64_t length);

private:
    Result<> refill(uint64_t block_size) MC_REQUIRES(mutex_);

    const MemorySource source_;
    const uint64_t chunk_bytes_;
    Mutex mutex_;
    Buddy buddy_ MC_GUARDED_BY(mutex_);
    std::unordered_map<uint64_t, uint64_t> large_ MC_GUARDED_BY(mutex_);  // own allocations: address -> length
};

}  // namespace mooncake
