// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

// A slice into fragments: what one operation of one rail carries. Pure.
namespace mooncake::fabric {

struct SplitLimits {
    uint64_t operation_bytes_max = UINT64_MAX;  // not 0
    uint64_t stripe_bytes = 1 << 20;            // not 0
};

/// A part of a slice, by its offset in it.
struct Fragment {
    uint64_t offset = 0;
    uint64_t length = 0;

    friend bool operator==(const Fragment&, const Fragment&) = default;
};

/// The next fragment, of `left` bytes of which `room` lie in one chunk on both sides (not 0): a stripe is cut off while two or more are
/// left, so that no small rest remains.
inline uint64_t fragment_length(uint64_t left, uint64_t room, const SplitLimits& limits) noexcept {
    uint64_t piece = std::min(left, room);
    if (piece / 2 >= limits.stripe_bytes) piece = limits.stripe_bytes;
    return std::min(piece, limits.operation_bytes_max);
}

/// Cuts `length` bytes where a local or remote chunk ends, at the largest operation, and into stripes: of what lies between those ends,
/// a stripe is cut off while two or more are left, so that no small rest remains. `local_room(offset)` and `remote_room(offset)` say
/// how many bytes from there lie in one chunk, 0: in none. `take(fragment)` gets them in order. Returns how many bytes were cut:
/// less than `length` where a chunk is missing.
template <typename LocalRoom, typename RemoteRoom, typename Take>
uint64_t split(uint64_t length, const SplitLimits& limits, LocalRoom&& local_room, RemoteRoom&& remote_room, Take&& take) {
    uint64_t offset = 0;
    while (offset < length) {
        const uint64_t room = std::min(local_room(offset), remote_room(offset));
        if (room == 0) return offset;
        const uint64_t piece = fragment_length(length - offset, room, limits);
        take(Fragment{.offset = offset, .length = piece});
        offset += piece;
    }
    return offset;
}

}  // namespace mooncake::fabric
