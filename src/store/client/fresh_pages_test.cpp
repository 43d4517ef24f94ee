// SPDX-License-Identifier: Apache-2.0
#include "store/client/fresh_pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

namespace mooncake::store {
namespace {

constexpr uint64_t kPage = FreshPages::kPage, kHuge = FreshPages::kHugePage;
constexpr uintptr_t kBase = uintptr_t{1} << 40;

/// Notes what it is asked for, and has a clock that stands still unless told.
struct Noted {
    using Range = std::pair<uintptr_t, uint64_t>;
    std::vector<Range> populated, huge;
    bool has_huge = true;
    Duration huge_call_takes{};
    Time now{};

    FreshPages::System system() {
        return {.populate = [this](uintptr_t start, uint64_t length) { return populated.emplace_back(start, length), true; },
                .make_huge =
                    [this](uintptr_t start, uint64_t length) {
                        huge.emplace_back(start, length);
                        now += huge_call_takes;
                        return has_huge;
                    },
                .now = [this] { return now; }};
    }
};

Piece piece(uintptr_t at, uint64_t length) { return {reinterpret_cast<std::byte*>(at), length}; }

TEST(FreshPages, TakesObjectsTogetherThatAnAllocatorPutSideBySide) {
    Noted noted;
    FreshPages pages(noted.system());
    std::vector<Piece> pieces;
    for (uint64_t i = 0; i < 16; ++i) pieces.push_back(piece(kBase + 32 + i * (16 * kPage + 48), 16 * kPage));
    std::swap(pieces[3], pieces[9]);
    pages.provide(pieces);
    EXPECT_EQ(noted.populated, (std::vector<Noted::Range>{{kBase + kPage, 255 * kPage}}));
    EXPECT_TRUE(noted.huge.empty());
}

TEST(FreshPages, LeavesAloneWhatLiesBetweenObjectsFarApart) {
    Noted noted;
    FreshPages pages(noted.system());
    const std::vector<Piece> pieces{piece(kBase, 100 * kPage), piece(kBase + 103 * kPage, 80 * kPage),
                                    piece(kBase + 1000 * kPage, 10 * kPage)};
    pages.provide(pieces);
    EXPECT_EQ(noted.populated, (std::vector<Noted::Range>{{kBase, 100 * kPage}, {kBase + 103 * kPage, 80 * kPage}}))
        << "the last one is too short to pay";
    pages.provide({});
    EXPECT_EQ(noted.populated.size(), 2U);
}

TEST(FreshPages, MakesWholeHugePagesHugeAndPopulatesTheEnds) {
    Noted noted;
    FreshPages pages(noted.system());
    const std::vector<Piece> pieces{piece(kBase - 3 * kPage, 3 * kPage + 10 * kHuge + kPage)};
    pages.provide(pieces);
    EXPECT_EQ(noted.huge, (std::vector<Noted::Range>{{kBase, 8 * kHuge}, {kBase + 8 * kHuge, 2 * kHuge}}));
    EXPECT_EQ(noted.populated, (std::vector<Noted::Range>{{kBase - 3 * kPage, 3 * kPage}, {kBase + 10 * kHuge, kPage}}));
}

TEST(FreshPages, DoWithoutHugePagesForAWhileWhereThereAreNone) {
    Noted noted;
    noted.has_huge = false;
    FreshPages pages(noted.system());
    const std::vector<Piece> pieces{piece(kBase, 2 * kHuge)};
    pages.provide(pieces);
    pages.provide(pieces);
    EXPECT_EQ(noted.huge.size(), 1U);
    EXPECT_EQ(noted.populated, (std::vector<Noted::Range>{{kBase, 2 * kHuge}, {kBase, 2 * kHuge}}));
    noted.now += FreshPages::kRestMin;
    noted.has_huge = true;
    pages.provide(pieces);
    EXPECT_EQ(noted.huge.size(), 2U);
    EXPECT_EQ(noted.populated.size(), 2U);
}

TEST(FreshPages, StopLookingForHugePagesThatTakeLongToFind) {
    Noted noted;
    noted.huge_call_takes = 9ms;
    FreshPages pages(noted.system());
    const std::vector<Piece> pieces{piece(kBase, 100 * kHuge)};
    pages.provide(pieces);
    EXPECT_EQ(noted.huge.size(), 1U);
    EXPECT_EQ(noted.populated, (std::vector<Noted::Range>{{kBase, 100 * kHuge}}));
    noted.now += FreshPages::kRestFactor * 9ms - 1ms;
    pages.provide(pieces);
    EXPECT_EQ(noted.huge.size(), 1U);
    noted.now += 1ms;
    pages.provide(pieces);
    EXPECT_EQ(noted.huge.size(), 2U);
}

/// Asked without the code under test, so that this cannot excuse it.
bool kernel_populates() {
    constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, since Linux 5.14
    void* const page = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const bool does = page != MAP_FAILED && ::madvise(page, kPage, kPopulateWrite) == 0;
    if (page != MAP_FAILED) ::munmap(page, kPage);
    return does;
}

TEST(FreshPages, ExistAfterwardsWithTheirBytesKept) {
    constexpr uint64_t kLength = 5 * kHuge;
    void* const memory = ::mmap(nullptr, kLength, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    auto* const bytes = static_cast<std::byte*>(memory);
    bytes[3 * kHuge + 5] = std::byte{7};
    const Piece whole{bytes, kLength};
    provide_pages(std::span(&whole, 1));
    std::vector<unsigned char> there(kLength / kPage);
    ASSERT_EQ(::mincore(memory, kLength, there.data()), 0);
    const auto count = std::count_if(there.begin(), there.end(), [](unsigned char one) { return (one & 1) != 0; });
    EXPECT_EQ(bytes[3 * kHuge + 5], std::byte{7});
    EXPECT_EQ(std::count(bytes, bytes + kLength, std::byte{0}), static_cast<std::ptrdiff_t>(kLength - 1));
    ASSERT_EQ(::munmap(memory, kLength), 0);
    if (!kernel_populates()) GTEST_SKIP() << "this kernel does not populate";
    EXPECT_EQ(static_cast<uint64_t>(count), kLength / kPage);
}

}  // namespace
}  // namespace mooncake::store
