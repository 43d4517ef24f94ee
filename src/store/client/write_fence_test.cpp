// SPDX-License-Identifier: Apache-2.0
#include "store/client/write_fence.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace mooncake::store {
namespace {

Deadline soon() { return Deadline::after(20s); }

TEST(WriteFence, LetsInOnlyWhatTheFollowedMasterPlanned) {
    WriteFence fence;
    EXPECT_FALSE(fence.enter(7));
    fence.open(7);
    EXPECT_TRUE(fence.enter(7));
    EXPECT_FALSE(fence.enter(6));
    EXPECT_FALSE(fence.enter(0));
    fence.shut();
    EXPECT_FALSE(fence.enter(7));
}

TEST(WriteFence, WaitsForAMasterThatIsBecomingTheFollowedOne) {
    WriteFence fence;
    fence.open(6);
    std::atomic<bool> inside{false};
    std::jthread writer([&] { inside = static_cast<bool>(fence.enter(7, soon())); });
    fence.shut();
    fence.open(7);
    writer.join();
    EXPECT_TRUE(inside);
}

TEST(WriteFence, WaitsForAMasterThatWasLostFromSight) {
    WriteFence fence;
    fence.open(7);
    fence.shut();
    std::atomic<bool> inside{false};
    std::jthread writer([&] { inside = static_cast<bool>(fence.enter(7, soon())); });
    fence.open(7);
    writer.join();
    EXPECT_TRUE(inside);
}

TEST(WriteFence, WaitsNeitherForAnEarlierMasterNorForNoneNorForLong) {
    WriteFence fence;
    fence.open(6);
    fence.shut();
    fence.open(7);
    EXPECT_FALSE(fence.enter(6, Deadline::never()));
    EXPECT_FALSE(fence.enter(0, Deadline::never()));
    EXPECT_FALSE(fence.enter(8, Deadline::after(1ms)));
}

TEST(WriteFence, NobodyWaitsOnceItIsStopped) {
    WriteFence fence;
    std::jthread writer([&] { EXPECT_FALSE(fence.enter(7, soon())); });
    fence.stop();
    writer.join();
    EXPECT_FALSE(fence.enter(7, soon()));
}

TEST(WriteFence, DrainsWhenTheLastOneHasLeft) {
    WriteFence fence;
    fence.open(7);
    auto pass = fence.enter(7);
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

}  // namespace
}  // namespace mooncake::store
