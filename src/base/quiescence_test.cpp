// SPDX-License-Identifier: Apache-2.0
#include "base/quiescence.h"

#include <gtest/gtest.h>

#include <latch>
#include <memory>
#include <thread>
#include <vector>

namespace mooncake {
namespace {

TEST(Quiescence, IsQuietWithoutSections) {
    Quiescence quiescence;
    EXPECT_TRUE(quiescence.quiesce(Deadline::after(0s)));
    { const auto section = quiescence.enter(); }
    EXPECT_TRUE(quiescence.quiesce(Deadline::after(0s)));
}

TEST(Quiescence, GivesUpAtTheDeadlineWhileASectionIsOpen) {
    Quiescence quiescence;
    {
        const auto section = quiescence.enter();
        EXPECT_FALSE(quiescence.quiesce(Deadline::after(1ms)));
    }
    EXPECT_TRUE(quiescence.quiesce(Deadline::after(0s)));
}

TEST(Quiescence, OneThreadMayHoldSeveralSections) {
    Quiescence quiescence;
    const auto outer = quiescence.enter();
    const auto inner = quiescence.enter();
    EXPECT_FALSE(quiescence.quiesce(Deadline::after(0s)));
}

TEST(Quiescence, WaitsOnlyForSectionsThatWereOpenBefore) {
    // A thread that enters anew all the time must not keep the revoker waiting for ever.
    Quiescence quiescence;
    std::atomic<bool> stop{false};
    std::jthread busy([&] {
        while (!stop) const auto section = quiescence.enter();
    });
    for (int i = 0; i < 1000; ++i) ASSERT_TRUE(quiescence.quiesce(Deadline::after(60s)));
    stop = true;
}

TEST(Quiescence, WakesASleepingRevokerWhenTheSectionEnds) {
    Quiescence quiescence;
    for (int round = 0; round < 200; ++round) {
        std::atomic<bool> entered{false}, left{false};
        std::jthread accessor([&] {
            const auto inside = quiescence.enter();
            entered = true;
            entered.notify_all();
            std::this_thread::yield();
            left = true;
        });
        entered.wait(false);
        ASSERT_TRUE(quiescence.quiesce(Deadline::after(60s)));
        ASSERT_TRUE(left);
    }
}

/// What the class is for: nobody sees the value change inside a Section that found it allowed.
TEST(Quiescence, NoAccessOutlivesARevocation) {
    struct Target {
        int value = 0;  // plain on purpose: a race here is what ThreadSanitizer and the assertion would find
    };
    Quiescence quiescence;
    std::atomic<Target*> current{nullptr};
    std::atomic<bool> stop{false};
    std::atomic<uint64_t> accesses{0};
    std::vector<std::jthread> accessors;
    for (int t = 0; t < 4; ++t) {
        accessors.emplace_back([&] {
            while (!stop) {
                const auto section = quiescence.enter();
                Target* const target = current.load(std::memory_order_seq_cst);
                if (target == nullptr) continue;
                ASSERT_EQ(target->value, 7);
                ++accesses;
            }
        });
    }
    for (int round = 0; round < 2000 || accesses == 0; ++round) {
        auto target = std::make_unique<Target>();
        target->value = 7;
        current.store(target.get(), std::memory_order_seq_cst);
        std::this_thread::yield();
        current.store(nullptr, std::memory_order_seq_cst);
        ASSERT_TRUE(quiescence.quiesce(Deadline::after(60s)));
        target->value = 13;
        target.reset();
    }
    stop = true;
}

TEST(Quiescence, MoreThreadsThanSlotsStillGetIn) {
    Quiescence quiescence;
    std::atomic<int> count{0};
    {
        std::vector<std::jthread> threads;
        for (uint32_t t = 0; t < Quiescence::kSlots + 16; ++t)
            threads.emplace_back([&] {
                for (int i = 0; i < 20; ++i) {
                    const auto section = quiescence.enter();
                    ++count;
                }
            });
    }
    EXPECT_EQ(count, static_cast<int>(Quiescence::kSlots + 16) * 20);
    EXPECT_TRUE(quiescence.quiesce(Deadline::after(0s)));
}

TEST(Quiescence, SectionsOfAThreadMayBeOpenedWhileAllSlotsAreTaken) {
    // Whoever holds a Section may need another, or wait for who does: so none may wait for a free slot.
    Quiescence quiescence;
    std::latch all_inside(Quiescence::kSlots + 16);
    std::vector<std::jthread> threads;
    for (uint32_t t = 0; t < Quiescence::kSlots + 16; ++t)
        threads.emplace_back([&] {
            const auto outer = quiescence.enter();
            all_inside.arrive_and_wait();
            const auto inner = quiescence.enter();
        });
    threads.clear();
    EXPECT_TRUE(quiescence.quiesce(Deadline::after(0s)));
}

TEST(Quiescence, ARevokerIsNotKeptWaitingByThreadsThatShareASlot) {
    // More threads than slots, so that in every slot one enters before another has left.
    Quiescence quiescence;
    std::atomic<bool> stop{false};
    std::vector<std::jthread> threads;
    for (uint32_t t = 0; t < 2 * Quiescence::kSlots; ++t)
        threads.emplace_back([&] {
            while (!stop) {
                const auto section = quiescence.enter();
                std::this_thread::yield();
            }
        });
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(quiescence.quiesce(Deadline::after(60s)));
    stop = true;
}

}  // namespace
}  // namespace mooncake
