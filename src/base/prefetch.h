// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace mooncake {

/// Brings the cache line of this address closer, to be read; or, to be written. Any address will do.
/// The empty statement is for GCC, which takes a function that does nothing but prefetch for one without effect and drops the calls of it.
inline void prefetch(const void* address) noexcept {
    __builtin_prefetch(address);
    asm volatile("");
}
inline void prefetch_to_write(const void* address) noexcept {
    __builtin_prefetch(address, 1);
    asm volatile("");
}

}  // namespace mooncake
