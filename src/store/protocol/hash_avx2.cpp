// SPDX-License-Identifier: Apache-2.0
// Compiled for AVX2 where the compiler knows it. Nothing with external linkage may come from a header here: the linker could take it
// for the whole program, which must also run on other processors.
#include "store/protocol/hash_avx2.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "store/protocol/copy_hash.h"

namespace mooncake::store {

#if defined(__AVX2__)
bool have_avx2() noexcept { return __builtin_cpu_supports("avx2") != 0; }
#else
bool have_avx2() noexcept { return false; }
#endif

uint64_t hash_avx2(const void* bytes, size_t length) noexcept { return XXH3_64bits(bytes, length); }

uint64_t copy_and_hash_avx2(std::byte* to, const std::byte* from, size_t length) noexcept { return copy_and_hash_blocks(to, from, length); }

}  // namespace mooncake::store
