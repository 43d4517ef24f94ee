// SPDX-License-Identifier: Apache-2.0
#include "buffer.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/log.h"

namespace mooncake::bench {

namespace {

Result<std::byte*> map_pages(uint64_t bytes) {
    void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return fail_errno(Code::kNoSpace, errno, "cannot map {} bytes", bytes);
    return static_cast<std::byte*>(memory);
}

}  // namespace

Result<Buffer> Buffer::create(Engine& engine, uint64_t bytes, bool managed) {
    if (managed) {
        MC_ASSIGN_OR_RETURN(void* const memory, engine.allocate_memory(bytes));
        std::memset(memory, 0x5a, bytes);
        return Buffer(engine, static_cast<std::byte*>(memory), bytes, true);
    }
    MC_ASSIGN_OR_RETURN(std::byte* const memory, map_pages(bytes));
    std::memset(memory, 0x5a, bytes);
    auto registered = engine.register_memory(memory, bytes);
    if (!registered) {
        ::munmap(memory, bytes);
        return Unexpected(std::move(registered).error());
    }
    return Buffer(engine, memory, bytes, false);
}

Buffer::Buffer(Buffer&& other) noexcept
    : engine_(other.engine_), data_(std::exchange(other.data_, nullptr)), size_(other.size_), managed_(other.managed_) {}

Buffer::~Buffer() {
    if (data_ == nullptr) return;
    auto released = managed_ ? engine_->free_memory(data_) : engine_->unregister_memory(data_);
    if (!released) MC_LOG_WARNING("cannot take the buffer back: {}", released.error().to_string());
    // Peers may still touch memory that could not be unregistered: it stays mapped.
    if (released && !managed_) ::munmap(data_, size_);
}

}  // namespace mooncake::bench
