// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/format.h"

// Whether memory that somebody named by address can be touched, told by the kernel without touching it ourselves. Changes no byte.
// The answer may be out of date at once; it is meant to catch mistakes. True where the kernel does not let us ask.
namespace mooncake {

MC_EXPORT bool is_readable(const std::byte* address, uint64_t length) noexcept;
/// Whether anything at all is mapped there; much cheaper.
bool is_mapped(const std::byte* address) noexcept;
/// Makes the pages present, as writing them would.
MC_EXPORT bool is_writable(std::byte* address, uint64_t length) noexcept;
/// As memcpy(), but by the kernel: false, with a part of it copied, where memory of either side is not there (any more), such as pages of a file that was cut off, whose touch
/// would end the process. Where the kernel does not let us it is memcpy().
bool copy_if_there(std::byte* to, const std::byte* from, uint64_t length) noexcept;

}  // namespace mooncake
