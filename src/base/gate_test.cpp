// SPDX-License-Identifier: Apache-2.0
#include "base/gate.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

namespace mooncake {
namespace {

TEST(Gate, LetsWorkInUntilItIsClosed) {
    Gate gate;
    { EXPECT_TRUE(gate.enter()); }
    EXPECT_FALSE(gate.closed());
    EXPECT_TRUE(gate.close());
    EXPECT_TRUE(gate.closed());
    EXPECT_FALSE(gate.enter());
}

TEST(Gate, ClosingTwiceIsHarmless) {
    Gate gate;
    EXPECT_TRUE(gate.close());
    EXPECT_TRUE(gate.close());
}

TEST(Gate, CloseGivesUpAtTheDeadlineAndCanBeRepeated) {
    Gate gate;
    {
        const Gate::Pass pass = gate.enter();
        EXPECT_FALSE(gate.close(Deadline::after(1ms)));
        EXPECT_FALSE(gate.enter());
    }
    EXPECT_TRUE(gate.close(Deadline::after(60s)));
}

TEST(Gate, AMovedPassLeavesOnce) {
    Gate gate;
    Gate::Pass first = gate.enter();
    Gate::Pass second = std::move(first);
    EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move): being empty is what a moved-from Pass promises
    EXPECT_TRUE(second);
    EXPECT_FALSE(gate.close(Deadline::after(1ms)));
    second = Gate::Pass();
    EXPECT_TRUE(gate.close(Deadline::after(60s)));
}

TEST(Gate, CloseWaitsForTheWorkInside) {
    Gate gate;
    std::atomic<bool> inside{false}, finished{false};
    std::jthread worker([&] {
        const Gate::Pass pass = gate.enter();
        inside = true;
        inside.notify_all();
        while (!gate.closed()) std::this_thread::yield();
        finished = true;
    });
    inside.wait(false);
    EXPECT_TRUE(gate.close());
    EXPECT_TRUE(finished);
}

TEST(Gate, APassMayEndInAnotherThreadThanItBegan) {
    Gate gate;
    std::vector<Gate::Pass> passes;
    for (uint32_t t = 0; t < 2 * Gate::kSlots; ++t) std::jthread([&] { passes.push_back(gate.enter()); });
    EXPECT_FALSE(gate.close(Deadline::after(0s)));
    passes.clear();
    EXPECT_TRUE(gate.close(Deadline::after(0s)));
    gate.reopen();
    EXPECT_TRUE(gate.enter());
}

TEST(Gate, NoWorkRunsAfterCloseReturnedAndTheGateMayGo) {
    for (int round = 0; round < 300; ++round) {
        auto gate = std::make_unique<Gate>();
        int shared = 0;  // unsynchronised on purpose: only the gate keeps workers and closer apart
        std::atomic<int> running{2};
        std::vector<std::jthread> workers;
        std::atomic<bool> turn{false};
        for (int t = 0; t < 2; ++t)
            workers.emplace_back([&, g = gate.get()] {
                for (;;) {
                    const Gate::Pass pass = g->enter();
                    if (!pass) break;
                    if (!turn.exchange(true, std::memory_order_acquire)) {
                        ++shared;
                        turn.store(false, std::memory_order_release);
                    }
                }
                --running;
            });
        ASSERT_TRUE(gate->close(Deadline::after(60s)));
        const int after = shared;
        while (running != 0) std::this_thread::yield();  // refused workers may still touch the gate
        EXPECT_EQ(shared, after);
        gate.reset();
    }
}

}  // namespace
}  // namespace mooncake
