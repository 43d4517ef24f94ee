// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/error.h"
#include "engine/engine.h"

/// How the store touches memory of its callers, which may be a device's: by CPU only what is the host's (docs/memory.md). What registered memory is
/// the engine knows; asked once for a piece, and answered at the price of a flag where only host memory has been registered.
namespace mooncake::store {

inline bool is_host(const Engine& engine, const std::byte* at, uint64_t length) {
    return engine.memory_kind(at, length) == MemoryKind::kHost;
}

/// Copies bytes within this process, of which both sides are there.
Result<> copy_any(const Engine& engine, std::byte* to, const std::byte* from, uint64_t length);

}  // namespace mooncake::store
