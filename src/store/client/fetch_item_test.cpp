// SPDX-License-Identifier: Apache-2.0
#include "store/client/fetch_item.h"

#include <gtest/gtest.h>

namespace mooncake::store {
namespace {

Place place(uint64_t generation, std::initializer_list<uint32_t> segments, uint64_t epoch = 1) {
    Place made{.generation = generation, .length = 100, .checksum = 1, .epoch = epoch, .lease_end = Time::max()};
    for (const uint32_t segment : segments) made.replicas[made.replica_count++] = {.segment = segment, .offset = 0};
    return made;
}

void fail(FetchItem& item, size_t replica, StoreCode why = StoreCode::kTransferFail) {
    item.choose(replica);
    item.chosen_failed(why);
}

TEST(FetchItem, IsAMissWhereNothingWasTried) {
    FetchItem item;
    item.begin(place(1, {4}));
    item.give_up();
    EXPECT_TRUE(item.done());
    EXPECT_EQ(item.code(), StoreCode::kObjectNotFound);
}

TEST(FetchItem, DoesNotTryAReplicaAgainBecauseItsLeaseWasRenewed) {
    FetchItem item;
    item.begin(place(1, {4, 5}));
    fail(item, 0);
    item.renew(place(1, {5, 4}));  // in another order
    EXPECT_FALSE(item.tried(0));
    EXPECT_TRUE(item.tried(1));
    fail(item, 0);
    item.renew(place(1, {5, 4}));
    EXPECT_TRUE(item.tried(0) && item.tried(1)) << "nothing is left, however often it is renewed";
}

TEST(FetchItem, TriesAnotherValueOrPlaceAfresh) {
    FetchItem item;
    item.begin(place(1, {4}));
    fail(item, 0);
    item.renew(place(2, {4}));
    EXPECT_FALSE(item.tried(0)) << "somebody replaced the value";
    fail(item, 0);
    item.renew(place(2, {6}));
    EXPECT_FALSE(item.tried(0)) << "it was moved";
    fail(item, 0);
    item.renew(place(2, {6}, 2));
    EXPECT_FALSE(item.tried(0)) << "another master means another segment";
}

TEST(FetchItem, TriesEverythingOnceMoreAfterTheMasterWasAskedAndThenNoMore) {
    FetchItem item;
    item.begin(place(1, {4, 5}));
    fail(item, 0);
    fail(item, 1);
    ASSERT_TRUE(item.may_restart());
    item.restart(place(1, {4, 5}));
    EXPECT_FALSE(item.tried(0) || item.tried(1));
    fail(item, 0);
    fail(item, 1, StoreCode::kChecksumMismatch);
    EXPECT_FALSE(item.may_restart());
    item.give_up();
    EXPECT_EQ(item.code(), StoreCode::kChecksumMismatch);
}

TEST(FetchItem, ComesToAnEndEvenIfItsValueIsReplacedAllTheTime) {
    FetchItem item;
    item.begin(place(1, {4}));
    int answers = 0;
    for (uint64_t generation = 2; item.may_renew() && answers < 1000; ++generation, ++answers) item.renew(place(generation, {4}));
    EXPECT_EQ(answers, FetchItem::kAnswersMax);
    EXPECT_FALSE(item.may_restart());
}

}  // namespace
}  // namespace mooncake::store
