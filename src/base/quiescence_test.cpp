// SPDX-License-Identifier: Apache-2.0
#include "base/quiescence.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <new>
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

TEST(Quiescence, WorksInMemorySharedBetweenProcesses) {
    void* const memory = ::mmap(nullptr, sizeof(Quiescence) + 64, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    auto* const quiescence = new (memory) Quiescence;
    auto* const step = new (static_cast<char*>(memory) + sizeof(Quiescence)) std::atomic<uint32_t>(0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        {
            const auto section = quiescence->enter(FutexScope::kShared);
            step->store(1);
            futex_wake_all(step, FutexScope::kShared);
            while (step->load() != 2) futex_wait(*step, 1, Deadline::after(60s), FutexScope::kShared);
        }
        ::_exit(0);
    }
    while (step->load() != 1) futex_wait(*step, 0, Deadline::after(60s), FutexScope::kShared);
    EXPECT_FALSE(quiescence->quiesce(Deadline::after(1ms), FutexScope::kShared));
    step->store(2);
    futex_wake_all(step, FutexScope::kShared);
    EXPECT_TRUE(quiescence->quiesce(Deadline::after(60s), FutexScope::kShared));
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    ::munmap(memory, sizeof(Quiescence) + 64);
}

}  // namespace
}  // namespace mooncake
