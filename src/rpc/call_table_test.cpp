// SPDX-License-Identifier: Apache-2.0
#include "rpc/call_table.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace mooncake::rpc {
namespace {

PendingCall call_at(Deadline deadline) {
    return {.deadline = deadline, .callback = [](const Result<Bytes>&) {}};
}

TEST(CallTable, TakesEachCallOnce) {
    CallTable table(5);
    const uint64_t id = table.insert(call_at(Deadline::never()));
    EXPECT_EQ(CallTable::number_of(id), 5u);
    EXPECT_TRUE(table.contains(id));
    EXPECT_TRUE(table.take(id));
    EXPECT_FALSE(table.take(id));
    EXPECT_FALSE(table.contains(id));
    EXPECT_EQ(table.size(), 0u);
}

TEST(CallTable, NeverUsesTheIdZero) {
    CallTable table(0);
    for (int i = 0; i < 100; ++i) {
        const uint64_t id = table.insert(call_at(Deadline::never()));
        EXPECT_NE(id, 0u);
        EXPECT_TRUE(table.take(id));
    }
    EXPECT_FALSE(table.take(0));
}

TEST(CallTable, LongCallsDoNotDisturbShortOnes) {
    CallTable table(1);
    const uint64_t old = table.insert(call_at(Deadline::never()));
    for (int i = 0; i < 10'000; ++i) {
        const uint64_t id = table.insert(call_at(Deadline::never()));
        EXPECT_NE(id, old);
        ASSERT_TRUE(table.take(id));
    }
    EXPECT_TRUE(table.take(old));
}

TEST(CallTable, BehavesLikeAMap) {
    std::mt19937 random(17);
    CallTable table(CallTable::kNumberMax);
    std::map<uint64_t, Time> model;
    const Time base = Clock::now();
    for (int step = 0; step < 200'000; ++step) {
        if (random() % 100 < 52 && model.size() < 3000) {
            const Time deadline = base + std::chrono::milliseconds(random() % 100'000);
            const uint64_t id = table.insert(call_at(Deadline(deadline)));
            ASSERT_TRUE(model.emplace(id, deadline).second);
        } else if (!model.empty()) {
            auto at = model.lower_bound(random() % 2 ? model.rbegin()->first - random() % 5000 : 0);
            if (at == model.end()) at = model.begin();
            const auto taken = table.take(at->first);
            ASSERT_TRUE(taken);
            EXPECT_EQ(taken->id, at->first);
            EXPECT_EQ(taken->deadline.at(), at->second);
            model.erase(at);
        }
        ASSERT_EQ(table.size(), model.size());
    }
    EXPECT_EQ(table.take_all().size(), model.size());
    EXPECT_EQ(table.size(), 0u);
}

TEST(CallTable, FindsTheExpiredAndTheNext) {
    CallTable table(1);
    const Time now = Clock::now();
    const uint64_t early = table.insert(call_at(Deadline(now)));
    table.insert(call_at(Deadline(now + 2s)));
    table.insert(call_at(Deadline::never()));
    Waiter waiter;
    table.insert({.deadline = Deadline(now - 1s), .waiter = &waiter});  // sees to its own deadline
    EXPECT_EQ(table.next_deadline().at(), now);
    const auto expired = table.take_expired(now);
    ASSERT_EQ(expired.size(), 1u);
    EXPECT_EQ(expired[0].id, early);
    EXPECT_EQ(table.next_deadline().at(), now + 2s);
    EXPECT_EQ(table.take_expired(now + 3s).size(), 1u);
    EXPECT_TRUE(table.next_deadline().is_never());
    EXPECT_EQ(table.size(), 2u);
}

}  // namespace
}  // namespace mooncake::rpc
