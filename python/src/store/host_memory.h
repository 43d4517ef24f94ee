// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/error.h"

/// Memory of this host that other processes can map, and where on this host threads and memory are. Thread-safe.
namespace mooncake::python {

/// Shared pages that are there already; huge ones if MC_STORE_USE_HUGEPAGE says so. 0 is no size.
Result<void*> allocate_host_memory(uint64_t size);
Result<> free_host_memory(void* address);  // kNotFound: not from allocate_host_memory()

/// Where the C functions are that do the same for pluggable allocators: void* (*)(size_t size, ...), void (*)(void* address, ...).
uintptr_t allocate_function() noexcept;
uintptr_t free_function() noexcept;

/// New pages of this thread come from that node if it has any left.
Result<> prefer_memory_of_node(int node);

}  // namespace mooncake::python
