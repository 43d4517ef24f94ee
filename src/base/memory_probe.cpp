// SPDX-License-Identifier: Apache-2.0
#include "base/memory_probe.h"

#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>

#include "base/pages.h"

namespace mooncake {

namespace {

constexpr size_t kPagesAtOnce = 1024;  // IOV_MAX

bool wraps(uint64_t start, uint64_t length) noexcept { return length - 1 > std::numeric_limits<uint64_t>::max() - start; }

}  // namespace

bool is_readable(const std::byte* address, uint64_t length) noexcept {
    const auto start = reinterpret_cast<uint64_t>(address);
    if (length == 0) return true;
    if (wraps(start, length)) return false;
    // One byte of each page, by the call that reports a bad address.
    std::array<std::byte, kPagesAtOnce> bytes;
    std::array<iovec, kPagesAtOnce> pages;
    const uint64_t last = start + length - 1;
    for (uint64_t at = start;;) {
        size_t count = 0;
        bool end = false;
        for (; count < pages.size() && !end; ++count) {
            const uint64_t to_next = page_bytes() - at % page_bytes();
            pages[count] = {.iov_base = reinterpret_cast<void*>(at), .iov_len = 1};
            end = last - at < to_next;
            at += to_next;
        }
        const iovec here{.iov_base = bytes.data(), .iov_len = count};
        const ssize_t read = ::process_vm_readv(::getpid(), &here, 1, pages.data(), count, 0);
        if (read < 0 && errno != EFAULT) return true;
        if (read != static_cast<ssize_t>(count)) return false;
        if (end) return true;
    }
}

bool copy_if_there(std::byte* to, const std::byte* from, uint64_t length) noexcept {
    while (length != 0) {
        const uint64_t now = std::min<uint64_t>(length, uint64_t{1} << 30);
        const iovec here{.iov_base = to, .iov_len = now};
        const iovec there{.iov_base = const_cast<std::byte*>(from), .iov_len = now};
        const ssize_t copied = ::process_vm_readv(::getpid(), &here, 1, &there, 1, 0);
        if (copied < 0 && errno != EFAULT) {
            std::memcpy(to, from, length);
            return true;
        }
        if (copied <= 0) return false;
        to += copied;
        from += copied;
        length -= static_cast<uint64_t>(copied);
    }
    return true;
}

bool is_mapped(const std::byte* address) noexcept {
    const auto start = reinterpret_cast<uint64_t>(address);
    unsigned char present = 0;
    return ::mincore(reinterpret_cast<void*>(start - start % page_bytes()), 1, &present) == 0 || errno != ENOMEM;
}

bool is_writable(std::byte* address, uint64_t length) noexcept {
    const auto start = reinterpret_cast<uint64_t>(address);
    if (length == 0) return true;
    if (wraps(start, length)) return false;
    return !kernel_populates_pages() || populate_pages(address, length);
}

}  // namespace mooncake
