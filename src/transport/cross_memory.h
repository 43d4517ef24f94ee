// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "transport/transport.h"

namespace mooncake {

/// One contiguous piece of a copy between our memory and that of a process on this host, which may be ourselves.
struct CrossPiece {  // without initial values: large arrays of it are made for small copies
    std::byte* local;
    uint64_t remote;
    uint64_t length;
};

/// How a copy ended: everything before `piece` is at its destination.
struct CrossResult {
    enum class Fault : uint8_t {
        kNone,    // all pieces are done
        kLocal,   // our memory of pieces[piece] is not mapped, or not for this direction
        kRemote,  // theirs is not
        kSystem,  // the whole call failed with `error`: ESRCH (no such process), EPERM, ENOMEM
    };
    size_t piece = 0;
    Fault fault = Fault::kNone;
    int error = 0;
};

constexpr size_t kCrossPiecesMax = 1024;  // IOV_MAX

/// Copies pieces in order by the kernel's cross-memory calls, which report a bad address instead of crashing; all of them in one
/// call where it can. Stops at the first piece that fails. At most kCrossPiecesMax pieces, none of them empty.
CrossResult cross_copy(pid_t pid, Direction direction, std::span<const CrossPiece> pieces) noexcept;

}  // namespace mooncake
