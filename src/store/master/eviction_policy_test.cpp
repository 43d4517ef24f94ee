// SPDX-License-Identifier: Apache-2.0
#include "store/master/eviction_policy.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace mooncake::store {
namespace {

class Policy : public testing::Test {
protected:
    ObjectId put(uint64_t length) {
        const ObjectId id = objects_.insert(1, std::to_string(++number_));
        objects_[id].length = length;
        policy_.insert(id);
        return id;
    }

    ObjectTable objects_{0};
    SegmentedLruPolicy policy_{objects_, /*looks_ahead=*/true};
    int number_ = 0;
};

TEST_F(Policy, HasAClassForEachDoublingOfTheLength) {
    EXPECT_EQ(EvictionPolicy::class_of(0), 0u);
    EXPECT_EQ(EvictionPolicy::class_of(256), 0u);
    EXPECT_EQ(EvictionPolicy::class_of(257), 1u);
    EXPECT_EQ(EvictionPolicy::class_of(4096), 4u);
    EXPECT_EQ(EvictionPolicy::class_of(4097), 5u);
    EXPECT_EQ(EvictionPolicy::class_of(64 << 20), 18u);
    EXPECT_EQ(EvictionPolicy::class_of(UINT64_MAX), EvictionPolicy::kClasses - 1);
}

TEST_F(Policy, ComparesAgesAcrossClassesByTheBytesPutSince) {
    const ObjectId small = put(100), large = put(10'000);
    EXPECT_EQ(policy_.age(small), 10'000u);
    EXPECT_EQ(policy_.age(large), 0u);
    policy_.touch(small);
    EXPECT_EQ(policy_.age(small), 0u);
    EXPECT_EQ(policy_.coldest(EvictionPolicy::class_of(100)), small);
    EXPECT_EQ(policy_.coldest(EvictionPolicy::class_of(10'000)), large);
    EXPECT_EQ(policy_.coldest(1), 0u);
    EXPECT_EQ(policy_.size(), 2u);
}

TEST_F(Policy, ProtectsAQuarterOfEachClassHoweverManyTheOthersHave) {
    for (int i = 0; i < 100; ++i) put(100);
    const ObjectId first = put(10'000), second = put(10'000);
    policy_.touch(first);
    policy_.touch(second);
    put(10'000), put(10'000);
    EXPECT_EQ(policy_.coldest(EvictionPolicy::class_of(10'000)), first) << "four of its class: one is protected";
}

TEST_F(Policy, AnEntrySetAsideThatIsReadCountsAsReusedAndAsNothingNew) {
    EvictionOrder order(objects_);
    std::vector<ObjectId> ids;
    for (int i = 0; i < 8; ++i) {
        ids.push_back(objects_.insert(1, std::to_string(i)));
        objects_[ids.back()].length = 100;
        order.insert(ids.back());
    }
    const uint64_t age = order.policy().age(ids[1]);
    order.set_aside(ids[0], Shelf::kLeased);
    order.touch(ids[0]);
    EXPECT_TRUE(objects_[ids[0]].reused) << "it is protected";
    EXPECT_EQ(order.policy().age(ids[1]), age) << "nothing was put";
    EXPECT_EQ(order.policy().age(ids[0]), 0u);
    EXPECT_EQ(order.policy().coldest(0), ids[1]);
}

TEST_F(Policy, KeepsPlaceAndAgeWhenAnotherMemberStandsForTheGroup) {
    const ObjectId first = put(100);
    put(200);
    const ObjectId heir = objects_.insert(1, "heir");
    objects_[heir].length = 1 << 20;
    policy_.replace(first, heir);
    EXPECT_EQ(policy_.coldest(0), heir) << "though it is longer";
    EXPECT_EQ(policy_.age(heir), 200u);
    policy_.remove(heir);
    EXPECT_EQ(policy_.size(), 1u);
}

TEST_F(Policy, LooksAheadAtEachEntryOnceColdestFirst) {
    const ObjectId small = put(100), large = put(10'000), next = put(100);
    EXPECT_EQ(policy_.first_unseen(), small);
    policy_.look_at(small);
    EXPECT_EQ(policy_.seen_bytes(), 100u);
    EXPECT_EQ(policy_.first_unseen(), large);
    policy_.look_at(large);
    EXPECT_EQ(policy_.first_unseen(), next);
    policy_.look_at(next);
    EXPECT_EQ(policy_.first_unseen(), 0u);
    const ObjectId last = put(100);
    EXPECT_EQ(policy_.first_unseen(), last);
    policy_.touch(small);
    EXPECT_EQ(policy_.seen_bytes(), 10'100u) << "what was used is not cold any more";
    policy_.remove(large);
    EXPECT_EQ(policy_.seen_bytes(), 100u);
    policy_.look_at(last);
    EXPECT_EQ(policy_.first_unseen(), small) << "and is looked at again";
    policy_.look_at(small);
    EXPECT_EQ(policy_.first_unseen(), 0u);
}

TEST_F(Policy, TheOneThatIsLookedAtNextMayGo) {
    const ObjectId first = put(100), second = put(100), third = put(100);
    policy_.remove(first);
    EXPECT_EQ(policy_.first_unseen(), second);
    policy_.look_at(second);
    policy_.replace(third, first);
    EXPECT_EQ(policy_.first_unseen(), first) << "another stands for its group";
    policy_.remove(second);
    EXPECT_EQ(policy_.seen_bytes(), 0u);
    EXPECT_EQ(policy_.first_unseen(), first);
}

}  // namespace
}  // namespace mooncake::store
