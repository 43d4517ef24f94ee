// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/error.h"
#include "base/fork.h"
#include "base/shared_memory.h"

/// Memory of this process that other processes of this host can be given. Thread-safe.
namespace mooncake::store::bridge {

/// One piece of it; unmapped when the last who holds it goes.
class HostBlock {
public:
    /// Zeroed, in whole pages; huge ones cannot be given to others. `present`: they are all there already.
    static Result<std::shared_ptr<HostBlock>> allocate(uint64_t size, uint64_t huge_page_bytes, bool present);
    HostBlock(Mapping mapping, MemoryFile file) noexcept : mapping_(std::move(mapping)), file_(std::move(file)) {}
    HostBlock(const HostBlock&) = delete;
    HostBlock& operator=(const HostBlock&) = delete;
    ~HostBlock();

    std::byte* data() const noexcept { return mapping_.address(); }
    uint64_t length() const noexcept { return mapping_.length(); }
    int fd() const noexcept { return file_.fd(); }  // -1: it cannot be shared

private:
    const uint32_t born_ = fork_generation();
    Mapping mapping_;
    MemoryFile file_;
};

/// For callers that know it by its address. The pages are there already; huge ones if MC_STORE_USE_HUGEPAGE says so. 0 is no size.
MC_EXPORT Result<void*> allocate_host_memory(uint64_t size);
MC_EXPORT Result<> free_host_memory(void* address);  // kNotFound: not from allocate_host_memory()
/// The one in which all of this lies; null: there is none.
std::shared_ptr<HostBlock> find_host_memory(const void* address, uint64_t length);

/// Where the C functions are that do the same for pluggable allocators: void* (*)(size_t size, ...), void (*)(void* address, ...).
MC_EXPORT uintptr_t allocate_function() noexcept;
MC_EXPORT uintptr_t free_function() noexcept;

}  // namespace mooncake::store::bridge
