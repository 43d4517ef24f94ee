// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>

#include "base/format.h"
#include "base/time.h"
#include "store/client/values.h"

namespace mooncake::store {

/// Makes the pages of new memory exist before it is filled, all of them by a few calls: a fault for each page costs several times what copying
/// its bytes does. Huge pages where whole ones fit and the kernel has them at hand: no others are cheap enough not to matter. Bytes are kept, nothing
/// fails: pages that the kernel does not provide come one by one when they are touched. Thread-safe.
class FreshPages {
public:
    /// What is asked of the system; replaced in tests. `start` and `length` are whole pages; false: it does not.
    struct System {
        std::function<bool(uintptr_t start, uint64_t length)> populate;
        std::function<bool(uintptr_t start, uint64_t length)> make_huge;
        std::function<Time()> now;

        static System linux_calls();
    };
    static constexpr uint64_t kPage = 4096, kHugePage = uint64_t{2} << 20;
    /// What an allocator may put between two objects: objects no further apart are taken together.
    static constexpr uint64_t kApartMax = 2 * kPage;
    static constexpr uint64_t kWorthIt = 64 * kPage;  // for less a call does not pay
    /// Kernels look for huge pages by moving others out of the way, which may take long. Where it did, or there were none, they are not asked
    /// for again before a multiple of that time, so that little can be lost.
    static constexpr Duration kHugePageMax = 1ms, kRestMin = 50ms, kRestMax = 10s;
    static constexpr int kRestFactor = 10;

    explicit FreshPages(System system) : system_(std::move(system)) {}
    void provide(std::span<const Piece> pieces);

private:
    void provide(uintptr_t start, uintptr_t end);
    bool make_huge(uintptr_t start, uintptr_t end);

    const System system_;
    std::atomic<Time> huge_again_at_{Time{}};
};

/// By the one FreshPages of this process.
MC_EXPORT void provide_pages(std::span<const Piece> pieces);

}  // namespace mooncake::store
