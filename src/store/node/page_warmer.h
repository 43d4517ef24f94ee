// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>

namespace mooncake::store {

/// What a PageWarmer asks of the system; replaced in tests.
struct PageSource {
    /// Makes the pages of the range exist, without changing their bytes; false: the system does not.
    std::function<bool(std::byte* at, uint64_t length)> populate;
    /// Memory that nobody would miss.
    std::function<uint64_t()> spare_bytes;

    static PageSource system();
};

/// Makes the pages of memory exist before somebody must wait for them: a page that is first touched by a put costs it several times what the
/// copy does. Works in short steps, and gives up where the system refuses or memory becomes scarce: the pages that are left then appear when
/// they are used. Not at low priority: each step holds the lock of the process's address space, which everybody needs who allocates memory, and a
/// thread that must wait for a processor while it holds that lock stops all the others. Ends with this object, which must go before the memory does.
class PageWarmer {
public:
    PageWarmer(std::byte* memory, uint64_t length, PageSource source = PageSource::system());
    PageWarmer(const PageWarmer&) = delete;
    PageWarmer& operator=(const PageWarmer&) = delete;

    /// What the thread does. Returns how many bytes are there for sure.
    static uint64_t warm(std::byte* memory, uint64_t length, const PageSource& source, const std::stop_token& stop);

    static constexpr uint64_t kStepBytes = 128 << 10;  // some ten microseconds, mostly
    static constexpr uint64_t kLookBytes = 64 << 20;   // between looks at how much is left

private:
    std::jthread thread_;
};

}  // namespace mooncake::store
