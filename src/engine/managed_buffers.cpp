// SPDX-License-Identifier: Apache-2.0
#include "engine/managed_buffers.h"

#include <utility>

namespace mooncake {

ManagedBuffers::ManagedBuffers(MemorySource source, uint64_t chunk_bytes) : source_(std::move(source)), chunk_bytes_(chunk_bytes) {}

Result<void*> ManagedBuffers::allocate(uint64_t length) {
    if (length == 0) return fail(Code::kInvalidArgument, "a buffer of no bytes");
    if (length > Buddy::kLargest) {
        MC_ASSIGN_OR_RETURN(void* const address, source_.allocate(length));
        const Lock lock(mutex_);
        large_.emplace(reinterpret_cast<uint64_t>(address), length);
        return address;
    }
    const Lock lock(mutex_);
    std::optional<uint64_t> address = buddy_.allocate(length);
    if (!address) {
        MC_RETURN_IF_ERROR(refill(Buddy::block_size(length)));
        address = buddy_.allocate(length);
    }
    return reinterpret_cast<void*>(*address);
}

/// Where a whole chunk cannot be had, a smaller one may still do.
Result<> ManagedBuffers::refill(uint64_t block_size) {
    Result<void*> chunk;
    uint64_t length = std::max(chunk_bytes_, block_size);
    for (;; length = std::max(length / 2, block_size)) {
        chunk = source_.allocate(length);
        if (chunk || length == block_size) break;
    }
    if (!chunk) return Unexpected(std::move(chunk).error());
    buddy_.add_chunk(reinterpret_cast<uint64_t>(*chunk), length);
    return {};
}

Result<> ManagedBuffers::free(void* address, uint64_t length) {
    const auto key = reinterpret_cast<uint64_t>(address);
    {
        const Lock lock(mutex_);
        const auto large = large_.find(key);
        if (large == large_.end()) return buddy_.free(key, length);
        if (large->second != length)
            return fail(Code::kInvalidArgument, "the buffer at {:#x} is one of {} bytes, not of {}", key, large->second, length);
        large_.erase(large);
    }
    return source_.free(address);
}

}  // namespace mooncake
