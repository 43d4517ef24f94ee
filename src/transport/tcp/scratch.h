// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace mooncake::tcp {

/// A small buffer that exchanges bytes with memory that may not be there: unmapped, cut off or write-protected since it was registered.
/// The kernel does the copying and reports a bad address; a memcpy() would kill the process. The buffer lies in a memory file, so that one
/// read() or write() of that file is the copy.
///
/// Holding one means holding one of kPlaces for the whole process, so it is held for a copy and a system call, never while waiting. The
/// object itself belongs to one thread.
class Scratch {
public:
    static constexpr size_t kBytes = 64 << 10;
    static constexpr size_t kPlaces = 64;

    /// std::bad_alloc: there is no memory for the buffer, which is made at the first use of its place.
    Scratch();
    ~Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

    std::byte* data() noexcept;
    /// Copies our first `bytes` bytes to the first `bytes` bytes of the pieces. Less when those are not writable: how much.
    size_t store(std::span<const iovec> to, size_t bytes) noexcept;
    /// Copies the first `bytes` bytes of the pieces to ours. Less when those are not readable: how much.
    size_t load(std::span<const iovec> from, size_t bytes) noexcept;

private:
    struct Place;
    static Place& take();
    template <typename Call>
    size_t copy(std::span<const iovec> pieces, size_t bytes, const Call& call) noexcept;

    Place& place_;
};

}  // namespace mooncake::tcp
