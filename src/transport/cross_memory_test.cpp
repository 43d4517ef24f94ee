// SPDX-License-Identifier: Apache-2.0
#include "transport/cross_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "transport/testing/conformance.h"

namespace mooncake {
namespace {

using Fault = CrossResult::Fault;
using testing::TestMemory;

TEST(CrossMemory, JoinsNeighboursOnEitherSideWithoutChangingWhatArrives) {
    const TestMemory here(1 << 20), there(1 << 20);
    here.fill_random(1);
    std::vector<CrossPiece> pieces;
    for (uint64_t i = 0; i < kCrossPiecesMax; ++i)
        pieces.push_back({.local = here.data() + i * 100, .remote = there.address() + i * 200 + i % 3, .length = 100 - i % 2});
    EXPECT_EQ(cross_copy(::getpid(), Direction::kWrite, pieces).fault, Fault::kNone);
    for (const CrossPiece& piece : pieces)
        ASSERT_EQ(std::memcmp(piece.local, reinterpret_cast<const void*>(piece.remote), piece.length), 0);
}

TEST(CrossMemory, NamesThePieceAndTheSideThatFailed) {
    constexpr uint64_t kPage = 4096, kBad = 40;
    const TestMemory here(64 * kPage), there(64 * kPage);
    for (const bool local_bad : {true, false}) {
        const TestMemory& bad = local_bad ? here : there;
        ASSERT_EQ(::mprotect(bad.data() + kBad * kPage, kPage, PROT_NONE), 0);
        for (const Direction direction : {Direction::kRead, Direction::kWrite}) {
            for (const uint64_t page_step : {1, 2}) {  // as one run, and scattered
                std::vector<CrossPiece> pieces;
                for (uint64_t i = 0; i < 64; i += page_step)
                    pieces.push_back({.local = here.data() + i * kPage, .remote = there.address() + i * kPage, .length = kPage});
                const CrossResult result = cross_copy(::getpid(), direction, pieces);
                EXPECT_EQ(result.fault, local_bad ? Fault::kLocal : Fault::kRemote);
                EXPECT_EQ(result.piece, kBad / page_step);
            }
        }
        ASSERT_EQ(::mprotect(bad.data() + kBad * kPage, kPage, PROT_READ | PROT_WRITE), 0);
    }
}

TEST(CrossMemory, BlamesADestinationThatIsReadOnly) {
    const TestMemory here(8192), there(8192);
    const CrossPiece piece{.local = here.data(), .remote = there.address(), .length = 8192};
    ASSERT_EQ(::mprotect(here.data() + 4096, 4096, PROT_READ), 0);
    EXPECT_EQ(cross_copy(::getpid(), Direction::kRead, std::span(&piece, 1)).fault, Fault::kLocal);
    EXPECT_EQ(cross_copy(::getpid(), Direction::kWrite, std::span(&piece, 1)).fault, Fault::kNone);
}

TEST(CrossMemory, ReportsAProcessThatDoesNotExist) {
    const TestMemory here(4096);
    const CrossPiece piece{.local = here.data(), .remote = here.address(), .length = 1};
    const CrossResult result = cross_copy(0x7fffffff, Direction::kRead, std::span(&piece, 1));
    EXPECT_EQ(result.fault, Fault::kSystem);
    EXPECT_EQ(result.error, ESRCH);
}

}  // namespace
}  // namespace mooncake
