// SPDX-License-Identifier: Apache-2.0
#include "store/service/locked_master.h"

#include <gtest/gtest.h>

#include <thread>

#include "store/service/started_requests.h"
#include "store/service/testing/stream_listener.h"

namespace mooncake::store {
namespace {

using namespace store::testing;

TEST(LockedMaster, LetsWhoeverWaitsGoFirstBetweenTheParts) {
    LockedMaster master({}, nullptr, nullptr);
    int part = 0, seen = 0;
    std::jthread other;
    for (int i = 1; i <= 20; ++i) {
        master.run([&](Transaction&, Time) {
            part = i;
            if (i != 5) return true;
            other = std::jthread([&] { seen = master.look([&](const MasterState&, Time) { return part; }); });
            return eventually([&] { return master.waiting() == 1; });
        });
        master.give_way();
    }
    other.join();
    EXPECT_EQ(seen, 5);
    EXPECT_EQ(master.holds(), 22u) << "20 parts, the other, and this question";
}

TEST(LockedMaster, DoesNotWaitForAnybodyWhereNobodyWaits) {
    LockedMaster master({}, nullptr, nullptr);
    master.give_way();
    EXPECT_EQ(master.waiting(), 0u);
}

TEST(StartedRequests, LetALongOneInOnlyOnceAtATime) {
    StartedRequests requests;
    const std::vector<PutItem> items(StartedRequests::kLong + 1);
    const PutStartRequest one{.client = {1, 1}, .request_id = 7, .config = {}, .items = items};
    PutStartRequest other = one;
    other.request_id = 8;
    {
        const auto first = requests.enter(one);
        EXPECT_TRUE(first);
        EXPECT_FALSE(requests.enter(one));
        EXPECT_FALSE(requests.enter(one)) << "that one has not left for the first";
        EXPECT_TRUE(requests.enter(other));
    }
    EXPECT_TRUE(requests.enter(one));
    PutStartRequest brief = one;
    brief.items = std::span(items).first(StartedRequests::kLong);
    const auto first = requests.enter(brief);
    EXPECT_TRUE(requests.enter(brief)) << "these are over before anybody could ask again";
}

}  // namespace
}  // namespace mooncake::store
