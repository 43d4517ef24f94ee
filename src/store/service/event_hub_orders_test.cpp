// SPDX-License-Identifier: Apache-2.0
// What nodes are told to copy, and when.
#include "store/service/testing/followed_master.h"

namespace mooncake::store {
namespace {

using namespace store::testing;
using EventHubOrders = EventHubTest;

TEST_F(EventHubOrders, OrdersThatHaveNotEndedAreToldAgain) {
    join(kNode, 1);
    put("k");
    join(kOther, 2);
    Told first, second, third;
    follow(kNode, first);
    first.take();
    const TaskReply task = copy_to(2, "k");
    auto updates = first.take();
    ASSERT_EQ(updates.size(), 1u);
    ASSERT_EQ(updates[0].orders.size(), 1u);
    EXPECT_EQ(updates[0].orders[0].task, task.task);

    follow(kNode, second);
    updates = second.take();
    ASSERT_EQ(updates.back().orders.size(), 1u);
    EXPECT_TRUE(updates.back().complete);
    EXPECT_EQ(updates.back().orders[0].task, task.task);
    master_.run([&](Transaction& transaction, Time now) { return end_task(transaction, {.client = kNode, .task = task.task}, now); });
    follow(kNode, third);
    for (const EventUpdate& update : third.take()) EXPECT_TRUE(update.orders.empty());
}

TEST_F(EventHubOrders, AnOrderWaitsUntilTheTargetsEventIsWithTheKernel) {
    join(kNode, 1);
    put("k");
    join(kOther, 2);
    Told node, target, again;
    follow(kNode, node);
    follow(kOther, target);
    node.take();
    target.hold_back();
    const TaskReply task = copy_to(2, "k");
    ASSERT_EQ(task.code, StoreCode::kOk);
    const auto orders = [](Told& told) {
        size_t count = 0;
        for (const EventUpdate& update : told.take()) count += update.orders.size();
        return count;
    };
    EXPECT_EQ(orders(node), 0u) << "a master that is killed now would leave a node that takes the range for free";
    follow(kNode, again);
    EXPECT_EQ(orders(again), 0u) << "nor is it told with the others";
    const Time now = Clock::now();
    EXPECT_EQ(hub_.expire(now), now + 5ms);
    EXPECT_EQ(orders(again), 0u);
    target.let_go();
    hub_.expire(now);
    EXPECT_EQ(orders(again), 1u);
    hub_.expire(now);
    EXPECT_EQ(orders(again), 0u) << "once";
}

TEST_F(EventHubOrders, AnOrderWaitsNoLongerThanUntilTheTargetIsCutOff) {
    join(kNode, 1);
    put("k");
    join(kOther, 2);
    Told node, target;
    follow(kNode, node);
    follow(kOther, target);
    node.take();
    target.hold_back();
    ASSERT_EQ(copy_to(2, "k").code, StoreCode::kOk);
    hub_.expire(Clock::now() + 2s);
    EXPECT_TRUE(target.broken_off()) << "it knows that it has not heard everything";
    const auto updates = node.take();
    ASSERT_EQ(updates.size(), 1u);
    EXPECT_EQ(updates[0].orders.size(), 1u);
}

}  // namespace
}  // namespace mooncake::store
