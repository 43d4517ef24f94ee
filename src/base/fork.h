// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "base/format.h"

namespace mooncake {

/// How often this process image was forked since the library was loaded. An object that remembers the value of its birth
/// can tell in a child that its threads are gone, and then does nothing at all.
MC_EXPORT uint32_t fork_generation() noexcept;

/// Descriptors named here are closed in a forked child, so that a child which never calls exec does not keep our
/// connections alive after we died. Descriptors above 65535 are not tracked.
void close_in_child(int fd) noexcept;
/// Before the descriptor is closed.
void keep_in_child(int fd) noexcept;

}  // namespace mooncake
