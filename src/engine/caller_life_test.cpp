// SPDX-License-Identifier: Apache-2.0
#include "engine/caller_life.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

namespace mooncake {
namespace {

constexpr Incarnation kFirst{1}, kSecond{2};

TEST(CallerLife, KeepsTheLifeItMetUntilItIsToldThatThisOneIsOver) {
    CallerLife life;
    EXPECT_FALSE(life.get());
    life.met(kFirst);
    life.met(kSecond);
    EXPECT_EQ(life.get(), kFirst);
    life.told(kSecond);
    EXPECT_EQ(life.get(), kFirst);
    life.told(kFirst);
    EXPECT_FALSE(life.get());
    life.met(kSecond);
    life.told(kFirst);  // of a transfer that began long ago
    EXPECT_EQ(life.get(), kSecond);
}

TEST(CallerLife, OnlyWordOfAnotherLifeEndsTheOneItHas) {
    CallerLife life;
    const Error gone(Code::kUnavailable, "gone"), stale(Code::kStale, "restarted");
    life.dealt(kFirst, nullptr);
    life.dealt(kFirst, &gone);
    EXPECT_EQ(life.get(), kFirst);
    life.dealt(kFirst, &stale);
    EXPECT_FALSE(life.get());
    life.dealt({}, &gone);
    EXPECT_FALSE(life.get());
}

TEST(CallerLife, IsEachThreadsOwnForEachSession) {
    const CallerKey one, other;
    one.of_this_thread()->met(kFirst);
    EXPECT_FALSE(other.of_this_thread()->get());
    EXPECT_EQ(one.of_this_thread()->get(), kFirst);
    std::jthread([&] {
        EXPECT_FALSE(one.of_this_thread()->get());
        one.of_this_thread()->met(kSecond);
    }).join();
    EXPECT_EQ(one.of_this_thread()->get(), kFirst);
}

TEST(CallerLife, OutlivesItsThreadAndItsSessionWhereSomebodyHoldsIt) {
    std::shared_ptr<CallerLife> held;
    std::jthread([&] {
        const CallerKey key;
        held = key.of_this_thread();
    }).join();
    held->met(kFirst);
    EXPECT_EQ(held->get(), kFirst);
}

TEST(CallerLife, SessionsThatEndedAreForgotten) {
    std::jthread([] {
        const CallerKey stays;
        stays.of_this_thread()->met(kFirst);
        for (int i = 0; i < 10'000; ++i) {
            const CallerKey key;
            EXPECT_FALSE(key.of_this_thread()->get()) << "a new session, wherever it lies";
            key.of_this_thread()->met(kSecond);
        }
        EXPECT_LE(CallerKey::known_to_this_thread(), 65u);
        EXPECT_EQ(stays.of_this_thread()->get(), kFirst);
        std::vector<CallerKey> many(1000);
        for (const CallerKey& key : many) key.of_this_thread()->met(kFirst);
        for (const CallerKey& key : many) EXPECT_EQ(key.of_this_thread()->get(), kFirst);
    }).join();
}

}  // namespace
}  // namespace mooncake
