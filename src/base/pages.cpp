// SPDX-License-Identifier: Apache-2.0
#include "base/pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

namespace mooncake {

namespace {

constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, which Debian 12's headers do not have

}  // namespace

uint64_t page_bytes() noexcept {
    static const auto bytes = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
    return bytes;
}

bool populate_pages(const void* address, uint64_t length) noexcept {
    const auto start = reinterpret_cast<uint64_t>(address);
    const uint64_t before = start % page_bytes();
    for (;;) {
        if (::madvise(reinterpret_cast<void*>(start - before), before + length, kPopulateWrite) == 0) return true;
        if (errno != EINTR && errno != EAGAIN) return false;
    }
}

bool kernel_populates_pages() noexcept {
    static const bool does = [] {
        char byte = 0;
        return populate_pages(&byte, 1);
    }();
    return does;
}

}  // namespace mooncake
