// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace mooncake {

/// Of this system, in bytes.
uint64_t page_bytes() noexcept;

/// Makes the pages of a range exist as writing them would, without changing a byte; the range is widened to whole pages. False, with errno:
/// the kernel does not (EINVAL before Linux 5.14, EFAULT where it may not be written, ENOMEM where nothing is mapped).
bool populate_pages(const void* address, uint64_t length) noexcept;
/// Whether the kernel knows how to.
bool kernel_populates_pages() noexcept;

}  // namespace mooncake
