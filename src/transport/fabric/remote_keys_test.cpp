// SPDX-License-Identifier: Apache-2.0
#include "transport/fabric/remote_keys.h"

#include <gtest/gtest.h>

namespace mooncake::fabric {
namespace {

ChunkRecord chunk(uint64_t address, uint64_t length, uint64_t key) {
    ChunkRecord made{.address = address, .length = length};
    made.set_key(0, key);
    return made;
}

TEST(RemoteKeys, KnowsOnlyWhatItWasTold) {
    RemoteKeys keys;
    EXPECT_EQ(keys.find(100, Direction::kRead), nullptr);
    keys.add({.chunks = {chunk(100, 50, 1), chunk(150, 10, 2)}}, 0);
    EXPECT_EQ(keys.find(99, Direction::kRead), nullptr);
    EXPECT_EQ(*keys.find(149, Direction::kRead)->key(0), 1u);
    EXPECT_EQ(*keys.find(150, Direction::kRead)->key(0), 2u);
    EXPECT_EQ(keys.find(160, Direction::kRead), nullptr);
    EXPECT_EQ(keys.covered({120, 40}), 40u);
    EXPECT_EQ(keys.covered({120, 41}), 40u);
    EXPECT_EQ(keys.covered({0, 10}), 0u);
    EXPECT_EQ(keys.covered({~uint64_t{0} - 5, 10}), 0u);
}

TEST(RemoteKeys, TheLastWordCountsWhereChunksOverlap) {
    RemoteKeys keys;
    keys.add({.chunks = {chunk(100, 50, 1), chunk(200, 50, 2), chunk(300, 50, 3)}}, 0);
    keys.add({.chunks = {chunk(140, 70, 4)}}, 0);
    EXPECT_EQ(keys.find(100, Direction::kRead), nullptr);
    EXPECT_EQ(*keys.find(140, Direction::kRead)->key(0), 4u);
    EXPECT_EQ(keys.find(220, Direction::kRead), nullptr);
    EXPECT_EQ(*keys.find(300, Direction::kRead)->key(0), 3u);
}

TEST(RemoteKeys, ACompleteAnswerReplacesEverything) {
    RemoteKeys keys;
    keys.add({.chunks = {chunk(100, 50, 1)}}, 0);
    keys.add({.chunks = {chunk(200, 50, 2)}, .complete = true}, 0);
    EXPECT_EQ(keys.find(100, Direction::kRead), nullptr);
    EXPECT_NE(keys.find(200, Direction::kRead), nullptr);
}

TEST(RemoteKeys, LacksWhatACompleteAnswerDidNotName) {
    RemoteKeys keys;
    const auto answered = keys.add({.chunks = {chunk(100, 50, 1)}, .complete = true}, 1000);
    EXPECT_FALSE(keys.lacks({100, 50}, answered));
    EXPECT_TRUE(keys.lacks({100, 51}, answered));
    EXPECT_TRUE(keys.lacks({0, 1}, answered));
    EXPECT_TRUE(keys.lacks({5000, 1}, answered));
    EXPECT_FALSE(keys.lacks({5000, 1}, {})) << "nobody asked";
    EXPECT_TRUE(keys.lacks({~uint64_t{0}, 2}, {})) << "it wraps around";
    keys.clear();
    EXPECT_FALSE(keys.lacks({5000, 1}, answered)) << "that was about other endpoints";
}

TEST(RemoteKeys, AnAnswerWithoutRoomForAllSettlesWhatLiesBeforeItsEnd) {
    RemoteKeys keys;
    const auto answered = keys.add({.chunks = {chunk(100, 50, 1), chunk(300, 50, 2)}}, 120);
    EXPECT_FALSE(keys.lacks({50, 1}, answered)) << "before what was asked for";
    EXPECT_TRUE(keys.lacks({140, 20}, answered));
    EXPECT_TRUE(keys.lacks({200, 1}, answered));
    EXPECT_FALSE(keys.lacks({340, 20}, answered)) << "who knows what comes after";
    EXPECT_FALSE(keys.lacks({400, 1}, answered));
    EXPECT_FALSE(keys.lacks({400, 1}, keys.add({}, 0)));
}

TEST(RemoteKeys, AProbeReadsWhatIsThereForItAndLentMemoryOnlyWithout) {
    RemoteKeys keys;
    EXPECT_EQ(keys.probe(0), nullptr);
    keys.add({.chunks = {chunk(100, 50, 1)}}, 0);
    EXPECT_EQ(keys.probe(0)->address, 100u);
    EXPECT_EQ(keys.probe(1), nullptr);
    keys.add({.chunks = {}, .probe = chunk(9000, 10, 7)}, 0);
    EXPECT_EQ(keys.probe(0)->address, 9000u);
    EXPECT_EQ(keys.find(9000, Direction::kRead), nullptr) << "it is not lent";
    keys.add({.chunks = {chunk(200, 50, 1)}, .complete = true}, 0);
    EXPECT_EQ(keys.probe(0)->address, 9000u);
    keys.clear();
    EXPECT_EQ(keys.probe(0), nullptr) << "its key went with the endpoint";
}

TEST(RemoteKeys, HoldsTheEndOfTheAddressSpace) {
    RemoteKeys keys;
    const uint64_t start = ~uint64_t{0} - 99;
    keys.add({.chunks = {chunk(start, 100, 1)}}, 0);
    EXPECT_EQ(keys.covered({start, 100}), 100u);
    keys.add({.chunks = {chunk(start + 50, 50, 2)}}, 0);
    EXPECT_EQ(keys.find(start, Direction::kRead), nullptr);
    EXPECT_EQ(*keys.find(~uint64_t{0}, Direction::kRead)->key(0), 2u);
}

}  // namespace
}  // namespace mooncake::fabric
