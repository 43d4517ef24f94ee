// SPDX-License-Identifier: Apache-2.0
#include "store/member/write_fence.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "store/member/write_guard.h"

namespace mooncake::store {
namespace {

Deadline soon() { return Deadline::after(20s); }

/// One whose right to write does not run out.
class WriteFenceTest : public ::testing::Test {
protected:
    WriteFenceTest() { fence.renew(BootTime::max()); }
    void reopen(uint64_t epoch) {
        fence.shut();
        fence.open(epoch);
    }
    WriteFence fence;
};

TEST_F(WriteFenceTest, LetsInOnlyWhatItsMasterPlanned) {
    EXPECT_FALSE(fence.enter());
    fence.open(7);
    const auto mark = fence.mark();
    EXPECT_TRUE(fence.enter());
    EXPECT_TRUE(fence.enter(mark));
    EXPECT_TRUE(fence.enter(7, mark, soon()));
    EXPECT_FALSE(fence.enter(0, mark, soon()));
    fence.shut();
    EXPECT_FALSE(fence.enter());
    EXPECT_FALSE(fence.enter(mark));
}

TEST_F(WriteFenceTest, LetsNothingInAfterTheMasterWasLostEvenIfItComesBack) {
    fence.open(7);
    const auto mark = fence.mark();
    reopen(7);
    EXPECT_FALSE(fence.enter(mark)) << "it may have given us up in between, and the range to another";
    EXPECT_FALSE(fence.enter(7, mark, soon()));
    EXPECT_TRUE(fence.enter());
}

TEST_F(WriteFenceTest, WaitsForAMasterThatWeAreJustGettingToKnow) {
    fence.open(6);
    const auto mark = fence.mark();  // and who answers is of life 7
    std::atomic<bool> inside{false};
    std::jthread writer([&] { inside = static_cast<bool>(fence.enter(7, mark, soon())); });
    reopen(7);
    writer.join();
    EXPECT_TRUE(inside);
}

TEST_F(WriteFenceTest, WaitsForTheOneWeLostSightOfBeforeWeAskedIt) {
    fence.open(7);
    fence.shut();
    const auto mark = fence.mark();
    std::atomic<bool> inside{false};
    std::jthread writer([&] { inside = static_cast<bool>(fence.enter(7, mark, soon())); });
    fence.open(7);
    writer.join();
    EXPECT_TRUE(inside);
}

TEST_F(WriteFenceTest, DoesNotWaitForWhoeverIsPast) {
    const auto before = fence.mark();
    fence.open(6);
    const auto mark = fence.mark();
    reopen(7);
    EXPECT_FALSE(fence.enter(6, mark, Deadline::never()));
    EXPECT_FALSE(fence.enter(7, before, Deadline::never())) << "not in the first turn after it was asked";
    EXPECT_FALSE(fence.enter(8, fence.mark(), Deadline::after(1ms)));
}

TEST_F(WriteFenceTest, APlanIsTooOldIfItsMasterWasMetTooLate) {
    const auto mark = fence.mark();
    const Deadline passed = Deadline::after(0s);
    fence.open(7);
    EXPECT_FALSE(fence.enter(7, mark, passed)) << "as after a process was stopped";
}

TEST_F(WriteFenceTest, NobodyWaitsOnceItIsStopped) {
    const auto mark = fence.mark();
    std::jthread writer([&] { EXPECT_FALSE(fence.enter(7, mark, soon())); });
    fence.stop();
    writer.join();
    EXPECT_FALSE(fence.enter(7, mark, soon()));
}

TEST_F(WriteFenceTest, DrainsWhenTheLastOneHasLeft) {
    fence.open(7);
    auto pass = fence.enter();
    std::atomic<bool> drained{false};
    fence.shut();
    std::jthread drain([&] {
        fence.drain();
        drained = true;
    });
    EXPECT_FALSE(drained);
    pass = {};
    drain.join();
    EXPECT_TRUE(drained);
}

TEST_F(WriteFenceTest, TheRightRunsOutUnlessTheMasterRenewsIt) {
    fence.open(7);
    const auto pass = fence.enter();
    EXPECT_TRUE(pass.holds());
    fence.renew(BootClock::now());
    EXPECT_FALSE(pass.holds()) << "nobody had to tell it: the clock did";
    EXPECT_FALSE(fence.enter());
    fence.renew(BootTime::max());
    EXPECT_TRUE(pass.holds());
}

TEST_F(WriteFenceTest, AGuardedCopyStopsWhereTheRightEnds) {
    fence.open(7);
    const auto pass = fence.enter();
    /// Takes the right away after its first piece.
    struct Thief final : Copier {
        explicit Thief(WriteFence& of) : fence(of) {}
        void begin(const std::byte*, uint64_t) noexcept override {}
        void copy(std::byte* to, const std::byte* from, uint64_t length) noexcept override {
            std::memcpy(to, from, length);
            fence.renew(BootClock::now());
        }
        void passed(const std::byte*, const std::byte*, uint64_t) noexcept override {}
        WriteFence& fence;
    } thief(fence);
    std::vector<std::byte> from(3 * WriteGuard::kPieceBytes, std::byte{1}), to(from.size());
    WriteGuard guard(pass);
    Block block{.local = from.data(), .remote = reinterpret_cast<uint64_t>(to.data()), .length = from.size(), .copier = &thief};
    guard.watch({&block, 1});
    EXPECT_FALSE(guard.left_out());
    block.copier->copy(to.data(), from.data(), from.size());
    EXPECT_TRUE(guard.left_out());
    EXPECT_EQ(to[WriteGuard::kPieceBytes - 1], std::byte{1});
    EXPECT_EQ(to[WriteGuard::kPieceBytes], std::byte{0});
}

}  // namespace
}  // namespace mooncake::store
