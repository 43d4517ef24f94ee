// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/claims.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <new>
#include <optional>
#include <thread>
#include <vector>

namespace mooncake::shm {
namespace {

TEST(Claims, AreWaitedForByWhoTakesTheirEntryBack) {
    Claims claims;
    std::optional<Claims::Section> section(std::in_place, claims);
    EXPECT_TRUE(claims.wait_for(3, Deadline::after(0s))) << "nothing is claimed yet";
    section->claim(3);
    section->claim(200);
    EXPECT_FALSE(claims.wait_for(3, Deadline::after(1ms)));
    EXPECT_FALSE(claims.wait_for(200, Deadline::after(1ms)));
    EXPECT_FALSE(claims.wait_for_all(Deadline::after(1ms)));
    section.reset();
    EXPECT_TRUE(claims.wait_for(3, Deadline::after(0s)));
    EXPECT_TRUE(claims.wait_for_all(Deadline::after(0s)));
}

TEST(Claims, KeepNobodyWaitingForAnotherEntry) {
    Claims claims;
    for (uint32_t mine = 0; mine < Claims::kEntries; ++mine) {
        Claims::Section section(claims);
        section.claim(mine);
        for (uint32_t other = 0; other < Claims::kEntries; ++other)
            ASSERT_EQ(claims.wait_for(other, Deadline::after(0s)), other != mine) << mine << " " << other;
        ASSERT_FALSE(claims.wait_for(mine + 5 * Claims::kEntries, Deadline::after(0s))) << "not told apart";
    }
}

TEST(Claims, OfTheSectionBeforeCountOnlyIfTheyAreMadeAgain) {
    Claims claims;
    const auto claimed = [&claims](uint32_t entry) { return !claims.wait_for(entry, Deadline::after(0s)); };
    {
        Claims::Section section(claims);
        section.claim(3);
        section.claim(70);
    }
    for (int round = 0; round < 3; ++round) {
        Claims::Section section(claims);
        section.claim(3);
        EXPECT_TRUE(claimed(3));
        EXPECT_FALSE(claimed(70));
    }
    Claims::Section section(claims);
    section.claim(4);
    EXPECT_FALSE(claimed(3));
    section.claim(3);
    EXPECT_TRUE(claimed(3));
    EXPECT_TRUE(claimed(4));
}

TEST(Claims, WakeASleepingOwnerWhenTheSectionEnds) {
    Claims claims;
    for (int round = 0; round < 200; ++round) {
        std::atomic<bool> entered{false}, left{false};
        std::jthread accessor([&] {
            Claims::Section section(claims);
            section.claim(7);
            entered = true;
            entered.notify_all();
            std::this_thread::yield();
            left = true;
        });
        entered.wait(false);
        ASSERT_TRUE(claims.wait_for(7, Deadline::after(60s)));
        ASSERT_TRUE(left);
    }
}

/// What the class is for: nobody sees the value change inside a Section that found its entry live.
TEST(Claims, NoCopyOutlivesTheWithdrawalOfItsEntry) {
    struct Region {
        int value = 0;  // plain on purpose: a race here is what ThreadSanitizer and the assertion would find
    };
    constexpr uint32_t kRegions = 3;
    Claims claims;
    std::array<std::atomic<Region*>, kRegions> live{};
    std::atomic<bool> stop{false};
    std::atomic<uint64_t> copies{0};
    std::vector<std::jthread> copiers;
    for (uint32_t t = 0; t < 4; ++t) {
        copiers.emplace_back([&, t] {
            for (uint32_t i = t; !stop; ++i) {
                Claims::Section section(claims);
                for (const uint32_t number : {i % kRegions, (i + 1) % kRegions}) {
                    section.claim(number);
                    const Region* const region = live[number].load(std::memory_order_seq_cst);
                    if (region == nullptr) continue;
                    ASSERT_EQ(region->value, 7);
                    ++copies;
                }
            }
        });
    }
    const Deadline enough = Deadline::after(5s);  // each round may wait for a thread that has to wait for a core
    for (uint32_t round = 0; (round < 2000 && !enough.passed()) || copies == 0; ++round) {
        auto region = std::make_unique<Region>(Region{.value = 7});
        const uint32_t number = round % kRegions;
        live[number].store(region.get(), std::memory_order_seq_cst);
        std::this_thread::yield();
        live[number].store(nullptr, std::memory_order_seq_cst);
        ASSERT_TRUE(claims.wait_for(number, Deadline::after(60s)));
        region->value = 13;
    }
    stop = true;
}

TEST(Claims, MoreThreadsThanSlotsStillGetIn) {
    Claims claims;
    std::atomic<int> count{0};
    {
        std::vector<std::jthread> threads;
        for (uint32_t t = 0; t < Claims::kSlots + 16; ++t)
            threads.emplace_back([&] {
                for (int i = 0; i < 20; ++i) {
                    const Claims::Section section(claims);
                    ++count;
                }
            });
    }
    EXPECT_EQ(count, static_cast<int>(Claims::kSlots + 16) * 20);
    EXPECT_TRUE(claims.wait_for_all(Deadline::after(0s)));
}

TEST(Claims, OfADeadProcessCanBeEnded) {
    Claims claims;
    alignas(Claims::Section) std::array<std::byte, sizeof(Claims::Section)> never_left;
    (new (never_left.data()) Claims::Section(claims))->claim(1);
    EXPECT_FALSE(claims.wait_for(1, Deadline::after(0s)));
    claims.abandon();
    EXPECT_TRUE(claims.wait_for(1, Deadline::after(0s)));
}

TEST(Claims, WorkInMemorySharedBetweenProcesses) {
    void* const memory = ::mmap(nullptr, sizeof(Claims) + 64, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    auto* const claims = new (memory) Claims;
    auto* const step = new (static_cast<char*>(memory) + sizeof(Claims)) std::atomic<uint32_t>(0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        {
            Claims::Section section(*claims);
            section.claim(9);
            step->store(1);
            futex_wake_all(step, FutexScope::kShared);
            while (step->load() != 2) futex_wait(*step, 1, Deadline::after(60s), FutexScope::kShared);
        }
        ::_exit(0);
    }
    while (step->load() != 1) futex_wait(*step, 0, Deadline::after(60s), FutexScope::kShared);
    EXPECT_FALSE(claims->wait_for(9, Deadline::after(1ms)));
    EXPECT_TRUE(claims->wait_for(8, Deadline::after(0s)));
    step->store(2);
    futex_wake_all(step, FutexScope::kShared);
    EXPECT_TRUE(claims->wait_for(9, Deadline::after(60s)));
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    ::munmap(memory, sizeof(Claims) + 64);
}

}  // namespace
}  // namespace mooncake::shm
