// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp/scratch.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>

#include "base/fork.h"
#include "base/futex.h"
#include "base/log.h"

namespace mooncake::tcp {

struct Scratch::Place {
    std::atomic<uint32_t> holder{0};  // 0: free; else one more than the fork generation of who holds it
    // Only the holder. Made at the first use and kept.
    uint32_t born = 0;
    int file = -1;  // -1: there is none to be had, and `bytes` is plain memory
    std::byte* bytes = nullptr;

    bool make() noexcept;
};

/// False: there is no memory for it.
bool Scratch::Place::make() noexcept {
    if (bytes != nullptr && born == fork_generation()) return true;
    // What a forked child found here it shares with its parent.
    if (bytes != nullptr && file >= 0) {
        ::munmap(bytes, kBytes);
        ::close(file);
    }
    born = fork_generation();
    file = ::memfd_create("mooncake-tcp", MFD_CLOEXEC);
    if (file >= 0) {
        void* const mapped = ::ftruncate(file, kBytes) == 0 ? ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)
                                                            : MAP_FAILED;
        if (mapped != MAP_FAILED) {
            bytes = static_cast<std::byte*>(mapped);
            return true;
        }
        ::close(file);
        file = -1;
    }
    MC_LOG_WARNING_EVERY(1min, "tcp: no memory file (errno {}): memory that is unmapped while it is registered may end this process",
                         errno);
    bytes = new (std::nothrow) std::byte[kBytes];
    return bytes != nullptr;
}

Scratch::Place& Scratch::take() {
    static constinit std::array<Place, kPlaces> places;
    // Threads start at different places, so that in the common case each has one to itself.
    static constinit std::atomic<uint32_t> next_thread{0};
    static thread_local const uint32_t home = next_thread.fetch_add(1, std::memory_order_relaxed) % kPlaces;
    const uint32_t mine = fork_generation() + 1;
    SpinPause pause;
    for (uint32_t i = home;; i = (i + 1) % kPlaces) {
        uint32_t holder = places[i].holder.load(std::memory_order_relaxed);
        // A holder of another generation is a thread that exists only in the parent.
        if (holder != mine && places[i].holder.compare_exchange_strong(holder, mine, std::memory_order_acquire)) {
            if (places[i].make()) return places[i];
            places[i].holder.store(0, std::memory_order_release);
            throw std::bad_alloc();
        }
        if ((i + 1) % kPlaces == home) pause();
    }
}

Scratch::Scratch() : place_(take()) {}

Scratch::~Scratch() { place_.holder.store(0, std::memory_order_release); }

std::byte* Scratch::data() noexcept { return place_.bytes; }

/// Calls with the pieces, some at a time, and with how far it has come, until all is copied or a call copies nothing.
template <typename Call>
size_t Scratch::copy(std::span<const iovec> pieces, size_t bytes, const Call& call) noexcept {
    std::array<iovec, 128> some;
    size_t done = 0, piece = 0, offset = 0;
    while (done < bytes) {
        size_t count = 0, here = 0;
        for (; count < some.size() && piece + count < pieces.size() && done + here < bytes; ++count) {
            const iovec& whole = pieces[piece + count];
            const size_t skipped = count == 0 ? offset : 0;
            some[count] = {.iov_base = static_cast<std::byte*>(whole.iov_base) + skipped,
                           .iov_len = std::min(whole.iov_len - skipped, bytes - done - here)};
            here += some[count].iov_len;
        }
        const ssize_t copied = call(some.data(), static_cast<int>(count), done);
        if (copied < 0 && errno == EINTR) continue;
        if (copied <= 0) break;
        done += static_cast<size_t>(copied);
        offset += static_cast<size_t>(copied);
        while (piece < pieces.size() && offset >= pieces[piece].iov_len) offset -= pieces[piece++].iov_len;
    }
    return done;
}

size_t Scratch::store(std::span<const iovec> to, size_t bytes) noexcept {
    return copy(to, bytes, [this](const iovec* pieces, int count, size_t at) -> ssize_t {
        if (place_.file >= 0) return ::preadv(place_.file, pieces, count, static_cast<off_t>(at));
        std::memcpy(pieces[0].iov_base, place_.bytes + at, pieces[0].iov_len);
        return static_cast<ssize_t>(pieces[0].iov_len);
    });
}

size_t Scratch::load(std::span<const iovec> from, size_t bytes) noexcept {
    return copy(from, bytes, [this](const iovec* pieces, int count, size_t at) -> ssize_t {
        if (place_.file >= 0) return ::pwritev(place_.file, pieces, count, static_cast<off_t>(at));
        std::memcpy(place_.bytes + at, pieces[0].iov_base, pieces[0].iov_len);
        return static_cast<ssize_t>(pieces[0].iov_len);
    });
}

}  // namespace mooncake::tcp
