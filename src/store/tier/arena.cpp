// SPDX-License-Identifier: Apache-2.0
#include "store/tier/arena.h"

#include <sys/mman.h>

#include <cerrno>
#include <utility>

namespace mooncake::store {

Result<Pages> Pages::create(uint64_t bytes) {
    void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return fail_errno(Code::kNoSpace, errno, "no memory for {} bytes of buffers", bytes);
    // A child of fork() must not make the device's pages copy on write while it works on them.
    ::madvise(memory, bytes, MADV_DONTFORK);
    Pages pages;
    pages.memory_ = {static_cast<std::byte*>(memory), bytes};
    return pages;
}

Pages::Pages(Pages&& other) noexcept : memory_(std::exchange(other.memory_, {})) {}

Pages& Pages::operator=(Pages&& other) noexcept {
    std::swap(memory_, other.memory_);
    return *this;
}

Pages::~Pages() {
    if (!memory_.empty()) ::munmap(memory_.data(), memory_.size());
}

Result<BufferPool> BufferPool::create(size_t count, uint64_t bytes_each) {
    BufferPool pool;
    MC_ASSIGN_OR_RETURN(pool.pages_, Pages::create(count * bytes_each));
    pool.bytes_each_ = bytes_each;
    pool.free_.reserve(count);
    for (size_t i = count; i != 0; --i) pool.free_.push_back(pool.pages_.data() + (i - 1) * bytes_each);
    return pool;
}

std::byte* BufferPool::take() noexcept {
    if (free_.empty()) return nullptr;
    std::byte* const buffer = free_.back();
    free_.pop_back();
    return buffer;
}

}  // namespace mooncake::store
