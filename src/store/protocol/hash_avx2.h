// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace mooncake::store {

/// Whether this processor, and this build, can run hash_avx2().
bool have_avx2() noexcept;
/// XXH3-64 with wider instructions than every processor has: more than twice as fast from a few hundred bytes on.
uint64_t hash_avx2(const void* bytes, size_t length) noexcept;
/// Likewise, of what it copies.
uint64_t copy_and_hash_avx2(std::byte* to, const std::byte* from, size_t length) noexcept;

}  // namespace mooncake::store
