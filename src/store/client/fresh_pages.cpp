// SPDX-License-Identifier: Apache-2.0
#include "store/client/fresh_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "base/pages.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25  // since Linux 6.1
#endif

namespace mooncake::store {

namespace {

constexpr uint64_t kHugeStep = 8 * FreshPages::kHugePage;  // between two looks at the clock

bool collapse(uintptr_t start, uint64_t length) {
    int status = 0;
    do {
        status = ::madvise(reinterpret_cast<void*>(start), length, MADV_COLLAPSE);
    } while (status != 0 && errno == EINTR);
    return status == 0;
}

/// Who runs the machine may have switched them off.
bool huge_pages_wanted() {
    std::string line;
    std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
    return std::getline(file, line) && line.find("[never]") == std::string::npos;
}

constexpr uintptr_t round_up(uintptr_t address, uint64_t unit) { return (address + unit - 1) / unit * unit; }
constexpr uintptr_t round_down(uintptr_t address, uint64_t unit) { return address / unit * unit; }

}  // namespace

FreshPages::System FreshPages::System::linux_calls() {
    // An allocator has written its headers between the objects, so pages there exist, and huge ones are had only by collapsing what there is.
    return {.populate = [](uintptr_t start, uint64_t length) { return populate_pages(reinterpret_cast<void*>(start), length); },
            .make_huge = [wanted = huge_pages_wanted()](uintptr_t start, uint64_t length) { return wanted && collapse(start, length); },
            .now = Clock::now};
}

void FreshPages::provide(std::span<const Piece> pieces) {
    const auto add = [](uint64_t sum, const Piece& piece) { return sum + piece.length; };
    if (std::accumulate(pieces.begin(), pieces.end(), uint64_t{0}, add) < kWorthIt) return;
    std::vector<Piece> sorted(pieces.begin(), pieces.end());
    std::sort(sorted.begin(), sorted.end(), [](const Piece& a, const Piece& b) { return a.data < b.data; });
    uintptr_t start = 0, end = 0;
    for (const Piece& piece : sorted) {
        const auto at = reinterpret_cast<uintptr_t>(piece.data);
        if (at > end + kApartMax) {
            provide(start, end);
            start = at;
        }
        end = std::max(end, at + piece.length);
    }
    provide(start, end);
}

void FreshPages::provide(uintptr_t start, uintptr_t end) {
    if (end - start < kWorthIt) return;
    // Pages at the ends are not ours alone, and small.
    start = round_up(start, kPage);
    end = round_down(end, kPage);
    const uintptr_t huge_start = round_up(start, kHugePage), huge_end = round_down(end, kHugePage);
    if (huge_start >= huge_end || !make_huge(huge_start, huge_end)) {
        (void)system_.populate(start, end - start);
        return;
    }
    if (huge_start > start) (void)system_.populate(start, huge_start - start);
    if (end > huge_end) (void)system_.populate(huge_end, end - huge_end);
}

bool FreshPages::make_huge(uintptr_t start, uintptr_t end) {
    Time before = system_.now();
    if (before < huge_again_at_.load(std::memory_order_relaxed)) return false;
    while (start < end) {
        const uint64_t step = std::min<uint64_t>(kHugeStep, end - start);
        const bool made = system_.make_huge(start, step);
        const Time after = system_.now();
        const bool slow = after - before > kHugePageMax * static_cast<int64_t>(step / kHugePage);
        if (!made || slow)
            huge_again_at_.store(after + std::clamp((after - before) * kRestFactor, kRestMin, kRestMax), std::memory_order_relaxed);
        if (!made) return false;
        start += step;
        before = after;
        if (slow) return start >= end;
    }
    return true;
}

void provide_pages(std::span<const Piece> pieces) {
    static FreshPages pages_of_process(FreshPages::System::linux_calls());
    pages_of_process.provide(pieces);
}

}  // namespace mooncake::store
